"""A consumer's stream, which reconnects by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import aiohttp

from driftq.backoff import Backoff
from driftq.connection import STREAM_SILENCE_S, Connection
from driftq.errors import DriftqError, ProtocolError, UnknownOutcome, may_be_sent_again, shown
from driftq.events import Reporter
from driftq.messages import Message, message_of, milliseconds
from driftq.transport import LINE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What a stream asks for. Times are seconds; what is `None` is the broker's default."""

    topic: str
    group: str
    owner: str
    lease: float | None = None
    prefetch: int | None = None
    start: str | None = None
    release_on_disconnect: bool = False
    ephemeral: bool = False
    max: int | None = None
    wait: float | None = None

    def path(self) -> str:
        """The path and query of the stream."""
        query: dict[str, Any] = {"topic": self.topic, "group": self.group, "owner": self.owner}
        query["lease_ms"] = None if self.lease is None else milliseconds(self.lease)
        query |= {"prefetch": self.prefetch, "from": self.start, "max": self.max}
        query["release_on_disconnect"] = "true" if self.release_on_disconnect else None
        query["ephemeral"] = "true" if self.ephemeral else None
        query["wait_ms"] = None if self.wait is None else milliseconds(self.wait)
        return "/v1/consume?" + urlencode({name: value for name, value in query.items() if value is not None})

    @property
    def ends(self) -> bool:
        """Whether the broker ends the stream when it has delivered so many, or nothing for so long."""
        return self.max is not None or self.wait is not None


async def messages(
    connection: Connection,
    options: StreamOptions,
    reporter: Reporter,
    *,
    silence: float = STREAM_SILENCE_S,
) -> AsyncGenerator[Message, None]:
    """The messages of a stream. A stream that is cut is opened again, with growing pauses until a message comes.

    An error that another try cannot mend (a wrong key, an unknown topic, no DriftQ broker) is raised. The iterator ends
    only where the stream asked for an end.
    """
    backoff = Backoff()
    delivered = 0
    while True:
        remaining = options if options.max is None else _with_max(options, options.max - delivered)
        failure: DriftqError
        try:
            async with connection.stream(remaining.path(), silence=silence) as response:
                reporter.report("connected", topic=options.topic, group=options.group)
                async with aclosing(_lines(response)) as lines:
                    async for line in lines:
                        message = _message(options.topic, line)
                        backoff.reset()
                        delivered += 1
                        reporter.report(
                            "received",
                            partition=message.partition,
                            offset=message.offset,
                            attempts=message.attempts,
                        )
                        yield message
            if options.ends:
                return
            failure = UnknownOutcome("the broker ended the stream", retry_is_safe=True)
        except _BadLine as error:
            reporter.report("protocol", error=error.message)
            failure = error
        except DriftqError as error:
            if not may_be_sent_again(error, repeatable=True):
                raise
            failure = error
        if options.max is not None and delivered >= options.max:
            return
        reporter.report("disconnected", kind=failure.kind, error=failure.message)
        await asyncio.sleep(backoff.next_pause(failure.retry_after))


class _BadLine(ProtocolError):
    """A line of a stream that is no message: the stream is opened again."""


def _with_max(options: StreamOptions, remaining: int) -> StreamOptions:
    return replace(options, max=remaining)


def _message(topic: str, line: bytes) -> Message:
    try:
        return message_of(topic, json.loads(line))
    except ProtocolError as error:
        raise _BadLine(error.message) from error
    except (ValueError, RecursionError) as error:
        raise _BadLine(f"expected a message in JSON, got {shown(line)}") from error


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The complete lines of a stream that are not blank. A line that was cut is dropped."""
    buffer = bytearray()
    async for chunk in response.content.iter_any():
        complete, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            buffer += chunk
            if len(buffer) > LINE_BYTES_MAX:
                raise _BadLine(f"a line is longer than {LINE_BYTES_MAX} bytes")
            continue
        lines = bytes(buffer + complete).split(b"\n")
        buffer = bytearray(rest)
        for line in lines:
            if line.strip():
                yield line
