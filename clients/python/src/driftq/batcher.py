"""Requests that wait while a batch is on the wire are the next batch."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from typing import Any

from driftq.backoff import Backoff
from driftq.connection import NDJSON_TYPE, Connection, decoded
from driftq.errors import (
    DriftqError,
    Misuse,
    ProtocolError,
    UnknownOutcome,
    error_of_fields,
    may_be_sent_again,
    shown,
)
from driftq.transport import CutAnswer

BATCH_LINES_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20
ALONE_MAX = 16
"""How many requests that a batch did not settle are under way at a time."""


@dataclass(slots=True)
class _Line:
    body: bytes
    repeatable: bool
    answer: asyncio.Future[dict[str, Any]]


class Batcher:
    """Sends requests of one route in batches of NDJSON, one batch at a time; one alone goes as plain JSON.

    Each request is answered, refused and repeated by itself.
    """

    def __init__(self, connection: Connection, path: str, *, linger: float = 0.0, max_pending: int = 10_000) -> None:
        if linger < 0 or max_pending < 1:
            raise Misuse("linger must be at least 0, and max_pending at least 1")
        self._connection = connection
        self._path = path
        self._linger = linger
        self._max_pending = max_pending
        self._waiting: deque[_Line] = deque()
        self._waiting_bytes = 0
        self._room = asyncio.Condition()
        self._full = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._alone = asyncio.Semaphore(ALONE_MAX)
        self._alone_tasks: set[asyncio.Task[None]] = set()
        self._unanswered: set[asyncio.Future[dict[str, Any]]] = set()

    async def send(self, body: bytes, *, repeatable: bool) -> dict[str, Any]:
        """Sends one request's JSON, and returns the fields of its answer or raises its error."""
        if len(self._waiting) >= self._max_pending:
            async with self._room:
                await self._room.wait_for(lambda: len(self._waiting) < self._max_pending)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)
        self._waiting.append(_Line(body, repeatable, future))
        self._waiting_bytes += len(body) + 1
        if len(self._waiting) >= BATCH_LINES_MAX or self._waiting_bytes >= BATCH_BYTES_MAX:
            self._full.set()
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all())
        return await future

    async def flush(self) -> None:
        """Waits until all that was sent so far is answered."""
        self._full.set()
        if self._unanswered:
            await asyncio.wait(set(self._unanswered))

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                if self._linger and not self._full.is_set():
                    await _set_within(self._full, self._linger)
                self._full.clear()
                batch = self._take()
                await self._announce_room()
                try:
                    await self._send_batch(batch)
                except Exception as error:  # a defect must fail the callers, not leave them waiting
                    _fail(batch, error)
        finally:
            self._sender = None

    def _take(self) -> list[_Line]:
        batch: list[_Line] = []
        size = 0
        while self._waiting and len(batch) < BATCH_LINES_MAX:
            size += len(self._waiting[0].body) + 1
            if batch and size > BATCH_BYTES_MAX:
                break
            line = self._waiting.popleft()
            self._waiting_bytes -= len(line.body) + 1
            # Its caller was cancelled before it was sent.
            if not line.answer.done():
                batch.append(line)
        return batch

    async def _announce_room(self) -> None:
        async with self._room:
            self._room.notify_all()

    async def _send_batch(self, batch: list[_Line]) -> None:
        if not batch:
            return
        if len(batch) == 1:
            await self._send_first(batch[0])
            return
        body = b"\n".join(line.body for line in batch) + b"\n"
        repeatable = all(line.repeatable for line in batch)
        try:
            answer = await self._connection.request(
                "POST", self._path, body=body, content_type=NDJSON_TYPE, repeatable=repeatable
            )
        except DriftqError as error:
            answered = self._settle(batch, _complete_lines(error)) if isinstance(error, CutAnswer) else 0
            if isinstance(error, UnknownOutcome) and not repeatable:
                # The batch was not repeated for the sake of some of its lines; the others can be.
                self._repeat_or_fail(batch[answered:], error)
            else:
                _fail(batch[answered:], error)
            return
        if answer.media_type != NDJSON_TYPE:
            raise ProtocolError(
                f"expected {NDJSON_TYPE}, got {answer.media_type or 'no content type'} with {shown(answer.body)}"
            )
        answered = self._settle(batch, answer.body.splitlines())
        self._repeat_or_fail(batch[answered:], UnknownOutcome("the answer of a batch has too few lines"))

    async def _send_first(self, line: _Line) -> None:
        """Sends a request that has no company, once; what has to be repeated does not hold up those behind it."""
        try:
            _answer(line, await self._request_alone(line, retry_for=0))
        except DriftqError as error:
            self._repeat_or_fail([line], error)

    def _settle(self, batch: list[_Line], answers: list[bytes]) -> int:
        """Answers the lines of a batch in order; returns how many."""
        answered = 0
        for line, text in zip(batch, answers, strict=False):
            try:
                fields = json.loads(text)
                status = fields["status"]
            except (ValueError, KeyError, TypeError, RecursionError):
                _fail([line], ProtocolError(f"expected a line of a batch, got {shown(text)}"))
            else:
                if 200 <= status < 300:
                    _answer(line, fields)
                else:
                    self._repeat_or_fail([line], error_of_fields(status, fields, repeatable=line.repeatable))
            answered += 1
        return answered

    def _repeat_or_fail(self, lines: list[_Line], error: DriftqError) -> None:
        for line in lines:
            if may_be_sent_again(error, line.repeatable):
                task = asyncio.create_task(self._repeat_alone(line, error))
                self._alone_tasks.add(task)
                task.add_done_callback(self._alone_tasks.discard)
            else:
                _fail([line], error)

    async def _repeat_alone(self, line: _Line, error: DriftqError) -> None:
        await asyncio.sleep(Backoff().next_pause(error.retry_after))
        async with self._alone:
            try:
                _answer(line, await self._request_alone(line, retry_for=None))
            except Exception as failure:  # a defect must fail the caller, not leave it waiting
                _fail([line], failure)

    async def _request_alone(self, line: _Line, retry_for: float | None) -> dict[str, Any]:
        answer = await self._connection.request(
            "POST", self._path, body=line.body, repeatable=line.repeatable, retry_for=retry_for
        )
        fields = decoded(answer)
        if not isinstance(fields, dict):
            raise ProtocolError(f"expected a JSON object, got {shown(answer.body)}")
        return fields


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return


def _complete_lines(error: CutAnswer) -> list[bytes]:
    return error.received.split(b"\n")[:-1]


def _answer(line: _Line, fields: dict[str, Any]) -> None:
    if not line.answer.done():
        line.answer.set_result(fields)


def _fail(lines: list[_Line], error: Exception) -> None:
    for line in lines:
        if not line.answer.done():
            line.answer.set_exception(error)
