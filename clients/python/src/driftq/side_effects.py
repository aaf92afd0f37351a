"""Effects inside a handler that are run once per identity, whatever happens to the handler."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from driftq.canonical import idempotency_key, request_hash
from driftq.errors import DriftqError, InvalidRequest, Misuse, StaleLease
from driftq.events import Reporter, logger
from driftq.heartbeat import BEATS_PER_LEASE, Heartbeat
from driftq.messages import Message
from driftq.outcomes import Permanent
from driftq.scopes import Identity, task
from driftq.store import (
    FAILED_FINAL,
    FAILED_RETRYABLE,
    SUCCEEDED,
    Execute,
    InProgressElsewhere,
    Replay,
    Retryable,
    Store,
)

IN_PROGRESS_PAUSE_MIN_S = 0.05
RECORD_TIMEOUT_S = 5.0
"""How long a cancelled handler is held up to record that its side effect was cancelled."""

LOST = "the lease of a side effect was lost while it ran"


class SideEffects:
    """The side effects of one delivery."""

    def __init__(
        self,
        store: Store,
        message: Message,
        *,
        group: str,
        owner: str,
        lease: float,
        reporter: Reporter,
        message_is_held: Callable[[], bool],
    ) -> None:
        self._store = store
        self._message = message
        self._group = group
        self._owner = owner
        self._lease = lease
        self._reporter = reporter
        self._message_is_held = message_is_held

    async def run(self, name: str, args: Any, function: Callable[[], Awaitable[Any] | Any]) -> Any:
        """Runs the function, or returns the result that an earlier run stored.

        Raises `Permanent` where it has failed for good, and `StaleLease` where another worker has taken it over.
        """
        identity = self._identity(name, args)
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            decision = await self._store.begin(identity, owner=self._owner, lease=self._lease)
            if isinstance(decision, Retryable):
                decision = await self._store.reacquire(identity, owner=self._owner, lease=self._lease)
            match decision:
                case Execute():
                    since = await self._in_time(identity, decision, asked)
                    return await self._execute(identity, decision, since, function)
                case Replay(status="SUCCEEDED"):
                    return decision.result
                case Replay():
                    raise Permanent(decision.last_error)
                case InProgressElsewhere():
                    # A lost lease of the message cancels the handler and with it this wait.
                    await asyncio.sleep(max(decision.retry_after, IN_PROGRESS_PAUSE_MIN_S))

    def _identity(self, name: str, args: Any) -> Identity:
        message = self._message
        return Identity(
            scope=task(idempotency_key(message.topic, self._group, message.identity_key)),
            key=idempotency_key(name, request_hash(args)),
            tenant=message.envelope.tenant_id or "",
        )

    async def _in_time(self, identity: Identity, grant: Execute, asked: float) -> float:
        """Since when the grant certainly stands.

        Its lease may have begun when it was asked for. One whose begin was repeated, or answered late, is renewed
        before it is used.
        """
        loop = asyncio.get_running_loop()
        since = asked
        while loop.time() - since > self._lease / BEATS_PER_LEASE:
            since = loop.time()
            await self._store.renew(identity, lease_token=grant.lease_token, lease=self._lease)
        return since

    async def _execute(
        self, identity: Identity, grant: Execute, since: float, function: Callable[[], Awaitable[Any] | Any]
    ) -> Any:
        token = grant.lease_token
        loop = asyncio.get_running_loop()
        running = loop.create_task(_called(function))

        async def renew() -> None:
            await self._store.renew(identity, lease_token=token, lease=self._lease)

        heartbeat = Heartbeat(
            lease=self._lease,
            received=since,
            beat=renew,
            on_lost=lambda: _cancel(running),
            reporter=self._reporter,
        )
        try:
            result = await self._outcome(identity, token, running, heartbeat)
            await self._store_result(identity, token, result)
            return result
        finally:
            heartbeat.stop()

    async def _outcome(self, identity: Identity, token: str, running: asyncio.Task[Any], heartbeat: Heartbeat) -> Any:
        try:
            result = await running
        except asyncio.CancelledError:
            if heartbeat.lost:
                raise StaleLease(LOST) from None
            if self._message_is_held():
                await asyncio.wait_for(self._record(identity, token, FAILED_RETRYABLE, "cancelled"), RECORD_TIMEOUT_S)
            raise
        except Permanent as error:
            await self._record(identity, token, FAILED_FINAL, error.reason)
            raise
        except Exception as error:
            await self._record(identity, token, FAILED_RETRYABLE, f"{type(error).__name__}: {error}")
            raise
        if not heartbeat.check():
            raise StaleLease(LOST)
        return result

    async def _store_result(self, identity: Identity, token: str, result: Any) -> None:
        try:
            await self._store.finish(identity, lease_token=token, status=SUCCEEDED, result=result)
        except (Misuse, InvalidRequest) as error:
            # It has run: running it again for the sake of its result is what must not happen.
            reason = f"the result of a side effect cannot be stored: {error.message}"
            await self._record(identity, token, FAILED_FINAL, reason)
            raise Permanent(reason) from error

    async def _record(self, identity: Identity, token: str, status: str, reason: str) -> None:
        """Records a failure. If that fails too, the lease of the effect runs out instead."""
        try:
            await self._store.finish(identity, lease_token=token, status=status, last_error=reason)
        except DriftqError as error:
            logger.warning("the failure of a side effect was not recorded: %s", error)


async def _called(function: Callable[[], Awaitable[Any] | Any]) -> Any:
    result = function()
    return await result if inspect.isawaitable(result) else result


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
