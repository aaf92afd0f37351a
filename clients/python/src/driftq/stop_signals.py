"""Signals that stop workers. A loop has one handler for each signal: the workers of a loop share it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence

Stop = Callable[[], None]

_stops: dict[tuple[asyncio.AbstractEventLoop, signal.Signals], list[Stop]] = {}
"""What each caught signal of a loop calls. Entries are removed with their last worker."""


def call_on_signals(signals: Sequence[signal.Signals], stop: Stop) -> Callable[[], None]:
    """Calls `stop` at each of these signals, beside what other workers of the running loop want called.

    Returns a function that ends this; the last one gives the signal back. Nothing is caught outside the main thread,
    and on a platform whose loops have no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop = asyncio.get_running_loop()
    caught = [number for number in dict.fromkeys(signals) if _catch(loop, number)]
    for number in caught:
        _stops.setdefault((loop, number), []).append(stop)

    def end() -> None:
        for number in caught:
            stops = _stops[loop, number]
            stops.remove(stop)
            if not stops:
                del _stops[loop, number]
                loop.remove_signal_handler(number)

    return end


def _catch(loop: asyncio.AbstractEventLoop, number: signal.Signals) -> bool:
    if (loop, number) in _stops:
        return True
    try:
        loop.add_signal_handler(number, _call_all, loop, number)
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _call_all(loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
    for stop in list(_stops.get((loop, number), ())):
        stop()
