"""What a handler gets beside its message."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

from driftq.messages import Message
from driftq.side_effects import SideEffects


class Context:
    """One run of a handler."""

    def __init__(self, message: Message, *, owner: str, attempt: int, side_effects: SideEffects) -> None:
        self.message = message
        self.owner = owner
        self.attempt = attempt
        """The number of the grant of the effect or, without the store, of the delivery."""
        self._side_effects = side_effects
        self._cancelled = threading.Event()

    @property
    def traceparent(self) -> str | None:
        """The `traceparent` that the message was produced with."""
        return self.message.trace

    def cancelled(self) -> bool:
        """Whether the run is to end: the lease is lost, the deadline has passed, or the worker stops.

        An asynchronous handler gets a `CancelledError`; one that runs in a thread has to ask.
        """
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Called by the worker."""
        self._cancelled.set()

    async def side_effect(self, name: str, args: Any, function: Callable[[], Awaitable[Any] | Any]) -> Any:
        """Runs `function` once per message, name and arguments, also over crashes; later calls return its result.

        `args` and the result are JSON values. A `function` that raises `Permanent` is not run again, and every later
        call raises it; any other error is recorded and raised, and the next call runs it again.
        """
        return await self._side_effects.run(name, args, function)
