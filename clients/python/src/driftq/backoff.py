"""Pauses between tries: full jitter, never shorter than the broker asks for."""

from __future__ import annotations

import random
from collections.abc import Callable

PAUSE_BASE_S = 0.05
PAUSE_MAX_S = 5.0
RETRY_AFTER_MAX_S = 60.0


class Backoff:
    """Pauses drawn evenly from 0 to min(5 s, 50 ms · 2^n), n being the tries since the last `reset`."""

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        self._draw = draw
        self._tries = 0

    def next_pause(self, retry_after: float | None = None) -> float:
        """The next pause in seconds. `retry_after` is its least length, held to 60 s."""
        # The exponent is held so that a client that tries for days does not compute huge powers.
        longest = min(PAUSE_MAX_S, PAUSE_BASE_S * float(2 ** min(self._tries, 16)))
        self._tries += 1
        return max(self._draw(0.0, longest), min(retry_after or 0.0, RETRY_AFTER_MAX_S))

    def reset(self) -> None:
        """Starts again with short pauses, after a success."""
        self._tries = 0
