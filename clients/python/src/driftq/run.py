"""One delivery, from its receipt to its settlement."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from driftq.context import Context
from driftq.errors import Conflict, DriftqError, InvalidRequest, Misuse, StaleLease, may_be_sent_again
from driftq.events import logger
from driftq.heartbeat import Heartbeat
from driftq.job import Job
from driftq.messages import Message
from driftq.outcomes import Outputs, Permanent, Retry, unwrapped
from driftq.rfc3339 import timestamp
from driftq.scopes import Identity
from driftq.settle import Settlement, text_of
from driftq.side_effects import SideEffects
from driftq.store import SUCCEEDED, Execute, InProgressElsewhere, Replay, Retryable
from driftq.tracing import SPAN_NAME, attributes_of

Cancellation = Literal["lost", "shutdown", "deadline"]

PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a handler ended: with a value or an error, or not at all before it was abandoned."""

    value: Any = None
    error: BaseException | None = None
    abandoned: bool = False


class Run:
    """One delivery. `process` never raises, and returns when the delivery is settled or lost."""

    def __init__(self, job: Job, message: Message, received: float) -> None:
        self._job = job
        self._message = message
        self._settlement = Settlement(job, message)
        self._heartbeat = Heartbeat(
            lease=job.lease, received=received, beat=self._beat, on_lost=self._on_lost, reporter=job.reporter
        )
        self._cancelled: Cancellation | None = None
        self._context: Context | None = None
        self._handler: asyncio.Future[Any] | None = None
        self._is_thread = False
        self._abandoned: asyncio.Future[None] | None = None
        self._stuck_timer: asyncio.TimerHandle | None = None

    @property
    def lease_token(self) -> str:
        """The token of the delivery."""
        return self._message.lease_token

    async def process(self) -> None:
        """Begins the effect, runs the handler, and reports its outcome."""
        order_key = self._message.key if self._job.per_key_order and self._message.key else None
        try:
            if not await self._job.slots.acquire(order_key):
                await self._release_unbegun()
                return
            try:
                pause = await self._process_in_slot()
                self._heartbeat.stop()
                if pause:
                    await _set_within(self._job.stopping, pause)
            finally:
                self._job.slots.release(order_key)
        except Exception:
            logger.exception("a delivery of %s was not settled; its lease will run out", self._message.id)
            self._report_failed("defect", "the delivery was not settled")
        finally:
            self._heartbeat.stop()

    def lose(self) -> None:
        """The message has been delivered again: this delivery is void."""
        self._heartbeat.lose()

    def cancel_for_shutdown(self) -> None:
        """Cancels the handler. One that ignores this is abandoned when its lease has run out."""
        self._cancel("shutdown")
        if self._heartbeat.lost:
            self._abandon()
        else:
            self._heartbeat.let_expire()

    async def _beat(self) -> None:
        await asyncio.gather(self._settlement.extend(), self._settlement.renew())

    def _on_lost(self) -> None:
        was_shutting_down = self._cancelled == "shutdown"
        self._cancel("lost")
        if was_shutting_down:
            self._abandon()

    def _cancel(self, reason: Cancellation) -> None:
        if self._cancelled == "lost":
            return
        self._cancelled = reason
        if self._context is not None:
            self._context.cancel()
        if self._handler is not None and not self._handler.done():
            if not self._is_thread:
                self._handler.cancel()
            if self._stuck_timer is None:
                self._stuck_timer = asyncio.get_running_loop().call_later(self._job.lease, self._report_stuck)

    def _abandon(self) -> None:
        if self._abandoned is not None and not self._abandoned.done():
            self._abandoned.set_result(None)

    async def _process_in_slot(self) -> float | None:
        """Returns how long the slot is to pause."""
        attempt = self._message.attempts
        identity = self._job.identity_of(self._message)
        if identity is not None:
            try:
                decision = await self._job.begin(identity, self._message)
                if isinstance(decision, Retryable):
                    decision = await self._job.effects.reacquire(identity, owner=self._job.owner, lease=self._job.lease)
            except (StaleLease, Conflict):
                self._job.reporter.report("lease_lost", **self._place())
                return None
            except DriftqError as error:
                return await self._begin_failed(error)
            self._job.reporter.report("began", decision=_name_of(decision), **self._place())
            if self._is_lost():
                return None
            match decision:
                case Execute():
                    self._settlement.granted(identity, decision)
                    attempt = decision.attempt
                    self._job.held.add(identity)
                case Replay():
                    await self._settled(self._replay(decision))
                    return None
                case InProgressElsewhere(retry_after=pause):
                    return await self._leave_to_other(identity, pause)
        if self._is_lost():
            return None
        started = time.monotonic()
        try:
            ended = await self._run_handler(attempt)
            await self._settled(self._settle(ended, started))
        finally:
            if identity is not None:
                self._job.held.discard(identity)
        return None

    def _is_lost(self) -> bool:
        """Whether the lease is lost by now, which is reported: nothing may be sent for it any more."""
        if self._heartbeat.check():
            return False
        self._job.reporter.report("lease_lost", **self._place())
        return True

    async def _leave_to_other(self, identity: Identity, pause: float) -> float:
        try:
            own = await self._job.lost_its_begin(identity)
        except DriftqError:
            own = False
        if self._is_lost():
            return PAUSE_MIN_S
        if await self._settled(self._settlement.release()):
            self._job.reporter.report("released", **self._place())
        return PAUSE_MIN_S if own else min(max(pause, PAUSE_MIN_S), PAUSE_MAX_S)

    async def _begin_failed(self, error: DriftqError) -> float | None:
        self._report_failed(error.kind, error.message)
        if self._is_lost():
            return PAUSE_MIN_S
        if may_be_sent_again(error, repeatable=True):
            await self._settled(self._settlement.release())
            return PAUSE_MIN_S
        await self._settled(self._settlement.fail(text_of(error), self._job.retry_delay))
        return None

    async def _replay(self, decision: Replay) -> None:
        if decision.status != SUCCEEDED:
            await self._settlement.dead_letter(decision.last_error)
            self._report_failed("replay", decision.last_error)
            return
        result, produce = unwrapped(decision.result)
        await self._settlement.replay(result, produce)
        self._job.reporter.report("completed", seconds=0.0, **self._place())

    async def _run_handler(self, attempt: int) -> _Ended:
        job, message, loop = self._job, self._message, asyncio.get_running_loop()
        context = Context(
            message,
            owner=job.owner,
            attempt=attempt,
            side_effects=SideEffects(
                job.effects,
                message,
                group=job.group,
                owner=job.owner,
                lease=job.lease,
                reporter=job.reporter,
                message_is_held=lambda: not self._heartbeat.lost,
            ),
        )
        self._context = context
        deadline = timestamp(message.envelope.deadline) if message.envelope.deadline else None
        remaining = None if deadline is None else deadline - time.time()
        if remaining is not None and remaining <= 0:
            self._cancelled = "deadline"
            return _Ended(error=asyncio.CancelledError())
        if self._cancelled is not None:
            return _Ended(error=asyncio.CancelledError())
        handler = job.handler
        self._is_thread = not _is_asynchronous(handler)
        if self._is_thread:
            self._handler = asyncio.ensure_future(loop.run_in_executor(job.threads, self._call_in_thread, context))
        else:
            self._handler = loop.create_task(self._call(context))
        self._abandoned = loop.create_future()
        timer = None if remaining is None else loop.call_later(remaining, self._cancel, "deadline")
        try:
            await asyncio.wait({self._handler, self._abandoned}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pending in (timer, self._stuck_timer):
                if pending is not None:
                    pending.cancel()
        if not self._handler.done():
            self._report_stuck()
            return _Ended(abandoned=True)
        if self._handler.cancelled():
            return _Ended(error=asyncio.CancelledError())
        error = self._handler.exception()
        return _Ended(error=error) if error is not None else _Ended(self._handler.result())

    async def _call(self, context: Context) -> Any:
        with self._span():
            return await self._job.handler(self._message, context)

    def _call_in_thread(self, context: Context) -> Any:
        with self._span():
            value = self._job.handler(self._message, context)
        if inspect.isawaitable(value):
            raise TypeError("the handler returned an awaitable; define it with `async def`")
        return value

    def _span(self) -> AbstractContextManager[Any]:
        if self._job.tracer is None:
            return nullcontext()
        return self._job.tracer.span(
            SPAN_NAME, traceparent=self._message.trace, attributes=attributes_of(self._message)
        )

    async def _settle(self, ended: _Ended, started: float) -> None:
        # A handler that blocked the loop ends before the timers that it held up are run.
        if not self._heartbeat.check() or self._cancelled == "lost" or ended.abandoned:
            self._job.reporter.report("lease_lost", **self._place())
        elif self._cancelled == "deadline":
            await self._fail("deadline", "deadline exceeded", self._job.retry_delay)
        elif self._cancelled == "shutdown" and ended.error is not None:
            await self._settlement.release("shutdown")
            self._job.reporter.report("released", **self._place())
        elif ended.error is None:
            await self._succeed(ended.value, started)
        elif isinstance(ended.error, Permanent):
            await self._fail_for_good(ended.error.reason)
        elif isinstance(ended.error, Retry):
            delay = self._job.retry_delay if ended.error.delay is None else ended.error.delay
            await self._fail("retry", ended.error.reason, delay)
        else:
            await self._fail("exception", text_of(ended.error), self._job.retry_delay)

    async def _succeed(self, value: Any, started: float) -> None:
        outputs = value if isinstance(value, Outputs) else None
        result = value if outputs is None else outputs.result
        try:
            produce = [output.as_json() for output in outputs.messages] if outputs is not None else []
            await self._settlement.succeed(result, produce)
        except Misuse as error:
            await self._fail_for_good(f"the handler's result: {error.message}")
        except InvalidRequest as error:
            await self._fail_for_good(f"the broker refused the handler's result: {error.message}")
        except (StaleLease, Conflict):
            raise
        except DriftqError as error:
            await self._fail(error.kind, text_of(error), self._job.retry_delay)
        else:
            seconds = round(time.monotonic() - started, 6)
            self._job.reporter.report("completed", seconds=seconds, **self._place())

    async def _fail(self, kind: str, reason: str, delay: float | None) -> None:
        await self._settlement.fail(reason, delay)
        self._report_failed(kind, reason)

    async def _fail_for_good(self, reason: str) -> None:
        await self._settlement.fail_for_good(reason)
        self._report_failed("permanent", reason)

    async def _release_unbegun(self) -> None:
        if self._heartbeat.check() and await self._settled(self._settlement.release()):
            self._job.reporter.report("released", **self._place())

    async def _settled(self, settling: Any) -> bool:
        """Awaits a settlement; false if another worker has the message, or the broker did not take it."""
        try:
            await settling
        except (StaleLease, Conflict):
            self._job.reporter.report("lease_lost", **self._place())
            return False
        except DriftqError as error:
            # Nothing more can be said to the broker: the lease runs out, and the message is delivered again.
            self._report_failed(error.kind, error.message)
            return False
        return True

    def _report_failed(self, kind: str, error: str) -> None:
        self._job.reporter.report("failed", kind=kind, error=error, **self._place())

    def _report_stuck(self) -> None:
        self._job.reporter.report("handler_stuck", **self._place())

    def _place(self) -> dict[str, Any]:
        return {"partition": self._message.partition, "offset": self._message.offset}


def _name_of(decision: object) -> str:
    return {"Execute": "EXECUTE", "Replay": "REPLAY"}.get(type(decision).__name__, "IN_PROGRESS")


def _is_asynchronous(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return
