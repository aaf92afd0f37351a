"""Requests with an `Idempotency-Key`: the effect of each happens once, and each copy of it gets the same answer.

`Idempotency.answer` knows no web framework; `fastapi_app.py` has the few lines that bind it to FastAPI.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from driftq import (
    Conflict,
    DriftqError,
    Execute,
    Identity,
    InProgressElsewhere,
    InvalidRequest,
    Misuse,
    NotFound,
    Replay,
    Retryable,
    StaleLease,
    Store,
    request_hash,
    scopes,
)

RETRY_AFTER_S = 1.0
"""Where the store does not say how long to wait."""
ERROR_CHARS_MAX = 1_000


@dataclass(frozen=True)
class Answer:
    """An answer in HTTP: its status, a JSON value, and headers."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


class Rejected(Exception):
    """Raised by a handler: the request was refused for good. Its copies get the same answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.answer = Answer(status, {"error": reason})


class Call:
    """One run of a handler."""

    def __init__(self, store: Store, identity: Identity, grant: Execute) -> None:
        self._store = store
        self.identity = identity
        self.grant = grant
        self.has_finished = False

    async def finish(self, answer: Answer, status: str = "SUCCEEDED", **options: Any) -> Answer:
        """Ends the effect with this answer. A handler calls it to end the effect in a transaction of its own.

        With a PostgreSQL store, `connection=` is that transaction.
        """
        await self._store.finish(
            self.identity,
            lease_token=self.grant.lease_token,
            status=status,
            result=answer.body,
            response_code=answer.status,
            **options,
        )
        self.has_finished = True
        return answer


Handler = Callable[[Any, Call], Awaitable[Answer]]


class Idempotency:
    """Runs handlers behind a store of effects, in the scope `rpc`: a key is unique per caller and method."""

    def __init__(self, store: Store, *, owner: str, lease: float = 30.0, keep: timedelta = timedelta(days=1)) -> None:
        self._store = store
        self._owner = owner
        self._lease = lease
        self._keep = keep

    async def answer(self, principal: str, method: str, key: str | None, request: Any, handler: Handler) -> Answer:
        """The answer to a request: the handler's, or that of an earlier request with this key."""
        if not key:
            return Answer(400, {"error": "the header Idempotency-Key is required"})
        identity = Identity(scopes.rpc(principal, method), key)
        try:
            grant = await self._granted(identity, request)
            return grant if isinstance(grant, Answer) else await self._executed(identity, grant, request, handler)
        except Misuse as error:
            return Answer(400, {"error": error.message})
        except InvalidRequest as error:
            return Answer(error.status, {"error": error.message})
        except (StaleLease, Conflict, NotFound):
            return later("the request was taken over; its outcome is not known yet")
        except DriftqError as error:
            return unavailable("the store of effects is not available", error.retry_after)

    async def _granted(self, identity: Identity, request: Any) -> Execute | Answer:
        """Asks whether to run the request; else its answer."""
        decision = await self._store.begin(
            identity,
            owner=self._owner,
            lease=self._lease,
            request_hash=request_hash(request),
            expires_at=(datetime.now(timezone.utc) + self._keep).isoformat(),
        )
        if isinstance(decision, Retryable):
            # It has failed, or its server died. This copy of the request runs it again; others get a conflict.
            decision = await self._store.reacquire(identity, owner=self._owner, lease=self._lease)
        match decision:
            case Execute():
                return decision
            case Replay(result_lost=True):
                return Answer(500, {"error": "the request was handled; its answer has been lost"})
            case Replay():
                return Answer(decision.response_code, decision.result, {"Idempotent-Replayed": "true"})
            case InProgressElsewhere():
                return later("the same request is being handled", decision.retry_after)
        raise AssertionError(f"unknown decision {decision}")

    async def _executed(self, identity: Identity, grant: Execute, request: Any, handler: Handler) -> Answer:
        """Runs the handler under the grant, and ends the effect with what it answers."""
        call = Call(self._store, identity, grant)
        running = asyncio.ensure_future(handler(request, call))
        heartbeat = asyncio.ensure_future(self._renew(identity, grant, running))
        status, error_text = "SUCCEEDED", None
        try:
            answer = await running
            if call.has_finished:
                return answer
        except Rejected as rejected:
            answer, status, error_text = rejected.answer, "FAILED_FINAL", str(rejected)
        except asyncio.CancelledError:
            if heartbeat.done():
                return later("the lease of the request was lost")
            raise
        except (StaleLease, Conflict):
            # The handler has finished in a transaction, and the effect is no longer its own.
            raise
        except Exception as error:
            # Refused with `Conflict` if this was a commit whose answer was lost: the next copy gets the outcome.
            answer, status = unavailable("the request failed; send it again"), "FAILED_RETRYABLE"
            error_text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
        finally:
            heartbeat.cancel()
        return await call.finish(answer, status, last_error=error_text)

    async def _renew(self, identity: Identity, grant: Execute, running: asyncio.Future[Answer]) -> None:
        """Renews the lease while the handler runs, and cancels the handler where that is refused."""
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                await self._store.renew(identity, lease_token=grant.lease_token, lease=self._lease)
            except (StaleLease, NotFound, Conflict):
                running.cancel()
                return
            except DriftqError:
                # Another try follows. If none succeeds before the lease ends, others may run the request, and `finish`
                # is refused then.
                continue


def later(reason: str, retry_after: float | None = None) -> Answer:
    """Asks the caller to send the same request again."""
    return Answer(409, {"error": reason}, _retry_after(retry_after))


def unavailable(reason: str, retry_after: float | None = None) -> Answer:
    """The request may have been carried out or not; the same key makes it safe to send it again."""
    return Answer(503, {"error": reason}, _retry_after(retry_after))


def _retry_after(seconds: float | None) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(RETRY_AFTER_S if seconds is None else seconds)))}
