"""The requests that end one delivery, by outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftq.connection import decoded
from driftq.errors import Conflict, NotFound
from driftq.job import Job
from driftq.messages import Message
from driftq.outcomes import wrapped
from driftq.scopes import Identity
from driftq.settlement import complete_body, completed_of, truncated
from driftq.store import FAILED_FINAL, FAILED_RETRYABLE, SUCCEEDED, Execute

DEAD_LETTER_TOPIC_PREFIX = "dlq."
DEAD_LETTER_DELAY_S = 30.0
"""A dead letter is never dead-lettered again: one that fails for good waits so long for its next attempt."""


class Settlement:
    """Ends one delivery. Errors of the requests are raised; `StaleLease` and `Conflict`: another worker has it."""

    def __init__(self, job: Job, message: Message) -> None:
        self._job = job
        self._message = message
        self._identity: Identity | None = None
        self._grant: Execute | None = None

    def granted(self, identity: Identity, grant: Execute) -> None:
        """The effect has been granted, and has to be ended too."""
        if grant.idempotent:
            self._identity, self._grant = identity, grant

    async def renew(self) -> None:
        """Prolongs the lease of the effect, if there is one."""
        if self._identity is not None and self._grant is not None:
            await self._job.effects.renew(self._identity, lease_token=self._grant.lease_token, lease=self._job.lease)

    async def extend(self) -> None:
        """Prolongs the lease of the delivery."""
        job = self._job
        await job.client.extend(self._message, group=job.group, owner=job.owner, lease=job.lease)

    async def succeed(self, result: Any, produce: Sequence[Mapping[str, Any]]) -> None:
        """Acks with the result and the next messages. `Misuse`: one of them is no JSON."""
        job = self._job
        body = complete_body(self._message, job.group, job.owner, result=wrapped(result, ()), produce=produce)
        if not job.is_atomic:
            await self._finish(SUCCEEDED, result=wrapped(result, produce))
        await self._complete(body, has_outputs=bool(produce))

    async def replay(self, result: Any, produce: Sequence[Mapping[str, Any]]) -> None:
        """Acks with what an earlier run stored."""
        # In the scope of the message the effect has its result already; another spelling of it would be a conflict.
        stored = None if self._job.is_atomic else result
        body = complete_body(self._message, self._job.group, self._job.owner, result=stored, produce=produce)
        await self._complete(body, has_outputs=bool(produce))

    async def _complete(self, body: bytes, *, has_outputs: bool) -> None:
        trace = self._message.trace
        if has_outputs and trace:
            # The trace goes with the messages of the step as a header, which a batch cannot have for each line.
            answer = await self._job.client.connection.request(
                "POST", "/v1/complete", body=body, headers={"traceparent": trace}, repeatable=True
            )
            completed_of(decoded(answer))
        else:
            completed_of(await self._job.completes.send(body, repeatable=True))

    async def fail(self, reason: str, delay: float | None) -> None:
        """This attempt failed."""
        await self._finish(FAILED_RETRYABLE, last_error=reason)
        job = self._job
        await job.client.nack(self._message, group=job.group, owner=job.owner, reason=reason, delay=delay)

    async def fail_for_good(self, reason: str) -> None:
        """No attempt can succeed: dead-letters the message."""
        job = self._job
        if self._message.topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
            await self.fail(reason, job.retry_delay or DEAD_LETTER_DELAY_S)
        elif self._grant is not None and job.is_atomic:
            await self._finish(FAILED_FINAL, last_error=reason, dead_letter=True)
        else:
            await self._finish(FAILED_FINAL, last_error=reason)
            await self.dead_letter(reason)

    async def dead_letter(self, reason: str) -> None:
        """Dead-letters the message; its effect has ended or there is none."""
        job = self._job
        if self._message.topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
            delay = job.retry_delay or DEAD_LETTER_DELAY_S
            await job.client.nack(self._message, group=job.group, owner=job.owner, reason=reason, delay=delay)
        else:
            await job.client.nack(self._message, group=job.group, owner=job.owner, reason=reason, retryable=False)

    async def release(self, reason: str | None = None) -> None:
        """Returns the message; an effect that had begun is recorded as failed for this reason."""
        if reason is not None:
            await self._finish(FAILED_RETRYABLE, last_error=reason)
        await self._job.client.release(self._message, group=self._job.group, owner=self._job.owner)

    async def _finish(
        self, status: str, *, result: Any = None, last_error: str | None = None, dead_letter: bool = False
    ) -> None:
        if self._identity is None or self._grant is None:
            return
        try:
            await self._job.effects.finish(
                self._identity,
                lease_token=self._grant.lease_token,
                status=status,
                result=result,
                last_error=None if last_error is None else truncated(last_error),
                dead_letter=dead_letter,
                delivery=self._job.delivery_of(self._message) if dead_letter else None,
            )
        except NotFound:
            # Forgotten meanwhile: what remains is the message.
            if dead_letter:
                await self.dead_letter(last_error or "")
        except Conflict:
            # It has succeeded meanwhile, by a complete whose answer was lost: the message says so too.
            if status != FAILED_RETRYABLE:
                raise


def text_of(error: BaseException) -> str:
    """What is recorded of an exception."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
