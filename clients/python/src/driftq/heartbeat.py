"""Keeps a lease alive, and knows by the worker's own clock when it no longer is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from driftq.errors import Conflict, DriftqError, NotFound, StaleLease
from driftq.events import Reporter, logger

BEATS_PER_LEASE = 3
RETRIES_PER_LEASE = 12
"""How often per lease a heartbeat that failed is repeated, beyond what the connection repeats."""


class Heartbeat:
    """Calls `beat` every third of a lease, from `received` (of the loop's monotonic clock) on.

    The lease is lost when a beat is answered 409 or 404, or when none has succeeded for a whole lease, counted from
    when the last successful one was sent. `on_lost` is then called once.
    """

    def __init__(
        self,
        *,
        lease: float,
        received: float,
        beat: Callable[[], Awaitable[None]],
        on_lost: Callable[[], None],
        reporter: Reporter,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._lease = lease
        self._beat = beat
        self._on_lost = on_lost
        self._reporter = reporter
        self._last_success = received
        self._due = received + lease / BEATS_PER_LEASE
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._due, self._on_timer)
        self._beating: asyncio.Task[None] | None = None
        self._beats_on = True
        self.lost = False

    def stop(self) -> None:
        """Ends the heartbeat; the lease is not watched any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    def let_expire(self) -> None:
        """Sends no further beats, and calls `on_lost` when the lease has run out."""
        self._beats_on = False
        if not self.lost:
            self.stop()
            self._schedule(self._last_success + self._lease)

    def check(self) -> bool:
        """Whether the lease stands by the clock, now: timers may be late where something blocked the loop."""
        now = self._loop.time()
        if self._timer is not None or self._beating is not None:
            self._report_block(now)
        if not self.lost and now - self._last_success >= self._lease:
            self.lose()
        return not self.lost

    def lose(self) -> None:
        """Counts the lease as lost."""
        self.stop()
        if not self.lost:
            self.lost = True
            self._on_lost()

    def _schedule(self, when: float) -> None:
        self._due = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.time()
        self._report_block(now)
        self._timer = None
        if now - self._last_success >= self._lease:
            self.lose()
        elif self._beats_on:
            # A beat that is not answered ends with the lease: later than that, the loop is blocked.
            self._due = self._last_success + self._lease
            self._beating = self._loop.create_task(self._send())

    def _report_block(self, now: float) -> None:
        late = now - self._due
        # A timer that is late by a whole interval was held up by a blocked loop, not by ordinary load.
        if late >= self._lease / BEATS_PER_LEASE:
            self._due = now
            self._reporter.report("loop_blocked", seconds=round(late, 3))

    async def _send(self) -> None:
        sent = self._loop.time()
        failure = await self._outcome(self._last_success + self._lease - sent)
        self._beating = None
        match failure:
            case None:
                self._last_success = sent
                self._schedule(sent + self._lease / BEATS_PER_LEASE)
            case StaleLease() | Conflict() | NotFound():
                self.lose()
            case asyncio.TimeoutError():
                self._report_block(self._loop.time())
                self.lose()
            case DriftqError():
                logger.warning("a heartbeat failed: %s", failure)
                retry_at = self._loop.time() + self._lease / RETRIES_PER_LEASE
                self._schedule(min(retry_at, self._last_success + self._lease))
            case _:
                raise failure

    async def _outcome(self, timeout: float) -> BaseException | None:
        """What one beat failed with, if it did.

        Not `wait_for`: before Python 3.12 it swallows a cancellation where the result is there in the same turn of the
        loop, and a heartbeat that has been stopped would go on.
        """
        beat = asyncio.ensure_future(self._beat())
        # One that is given up may fail later: that is of no interest.
        beat.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            await asyncio.wait({beat}, timeout=timeout)
            return beat.exception() if beat.done() and not beat.cancelled() else asyncio.TimeoutError()
        finally:
            beat.cancel()
