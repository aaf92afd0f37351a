"""The client: a connection, and a method for every request that programs make."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from driftq.admin import DeadLetters, Groups, Server, Topics, peek
from driftq.broker_store import BrokerStore
from driftq.connection import Connection, decoded, encoded
from driftq.errors import Misuse, ProtocolError
from driftq.events import EventHook, Reporter
from driftq.messages import Message, Output, Produced, milliseconds, produced_of
from driftq.producer import Producer
from driftq.settlement import claim, complete_body, completed_of, truncated
from driftq.stream import StreamOptions, messages

if TYPE_CHECKING:
    from typing_extensions import Self

    from driftq.job import Handler
    from driftq.worker import Worker


class Client:
    """A client of one broker, or of several that stand in for each other. Used as an asynchronous context manager.

    Args:
        urls: One or several base URLs.
        key: Sent as `Authorization: Bearer …`.
        timeout: Seconds for one request.
        retry_for: Seconds for which one call is retried.
        ca: Certificates to trust, as a file or an `ssl.SSLContext`, instead of the system's.
        on_event: Called with each `Event`.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        key: str | None = None,
        timeout: float = 30.0,
        retry_for: float = 60.0,
        ca: str | ssl.SSLContext | None = None,
        on_event: EventHook | None = None,
    ) -> None:
        self.connection = Connection(urls, key=key, timeout=timeout, retry_for=retry_for, ca=ca, on_event=on_event)
        self._on_event = on_event
        self.topics = Topics(self.connection)
        self.groups = Groups(self.connection)
        self.dlq = DeadLetters(self.connection)
        self.server = Server(self.connection)
        self.effects = BrokerStore(self.connection)

    def __repr__(self) -> str:
        return f"Client({self.connection!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        await self.connection.close()

    def producer(self, *, linger: float = 0.0, max_pending: int = 10_000) -> Producer:
        """A producer that batches."""
        return Producer(self.connection, linger=linger, max_pending=max_pending)

    def worker(self, topic: str, group: str, handler: Handler, **options: Any) -> Worker:
        """A worker of this client; the options are those of `Worker`, and `on_event` is the client's if not given."""
        from driftq.worker import Worker

        options.setdefault("on_event", self._on_event)
        return Worker(self, topic, group, handler, **options)

    async def produce(
        self, topic: str, value: str | bytes | None = None, *, traceparent: str | None = None, **options: Any
    ) -> Produced:
        """Produces one message. `value` is text or bytes, `json=` any JSON value; options are the fields of `Output`.

        With an idempotency key it is repeated as needed; without one a lost answer is an `UnknownOutcome`.
        """
        output = Output(topic=topic, value=value, **options)
        headers = {"traceparent": traceparent} if traceparent else None
        return produced_of(
            await self.connection.request_json(
                "POST",
                "/v1/produce",
                body=encoded(output.as_json()),
                headers=headers,
                repeatable=bool(output.idempotency_key),
            )
        )

    async def consume(
        self,
        topic: str,
        group: str,
        *,
        owner: str | None = None,
        lease: float | None = None,
        prefetch: int | None = None,
        start: str | None = None,
        release_on_disconnect: bool = False,
        ephemeral: bool = False,
        max: int | None = None,
        wait: float | None = None,
    ) -> AsyncGenerator[Message, None]:
        """The messages of a stream that reconnects by itself. Close the iterator (`aclosing`) to end the stream.

        The caller acks, nacks or completes each message with the same `owner`.
        """
        options = StreamOptions(
            topic=topic,
            group=group,
            owner=owner or default_owner(),
            lease=lease,
            prefetch=prefetch,
            start=start,
            release_on_disconnect=release_on_disconnect,
            ephemeral=ephemeral,
            max=max,
            wait=wait,
        )
        async for message in messages(self.connection, options, Reporter(self._on_event)):
            yield message

    async def peek(self, topic: str, *, partition: int, offset: int = 0, limit: int | None = None) -> list[Message]:
        """What a partition has from an offset on, without consuming it."""
        return await peek(self.connection, topic, partition, offset, limit)

    async def ack(self, message: Message, *, group: str, owner: str) -> None:
        """Finishes a message."""
        await self._settle("/v1/ack", claim(message, group, owner))

    async def ack_cumulative(self, topic: str, *, group: str, partition: int, offset: int, owner: str) -> None:
        """Acks every message of the partition up to `offset` whose newest delivery went to `owner`."""
        body = {"topic": topic, "group": group, "partition": partition, "offset": offset, "owner": owner}
        await self.connection.request("POST", "/v1/ack-cumulative", json_body=body, repeatable=False)

    async def nack(
        self,
        message: Message,
        *,
        group: str,
        owner: str,
        reason: str = "",
        delay: float | None = None,
        retryable: bool = True,
    ) -> None:
        """Fails this attempt; with `retryable=False` dead-letters the message at once."""
        body = claim(message, group, owner)
        if reason:
            body["reason"] = truncated(reason)
        if delay is not None:
            body["delay_ms"] = milliseconds(delay)
        if not retryable:
            body["retryable"] = False
        await self._settle("/v1/nack", body)

    async def extend(
        self, message: Message, *, group: str, owner: str, lease: float, retry_for: float | None = None
    ) -> str:
        """Prolongs the lease of a delivery; returns until when."""
        body = claim(message, group, owner) | {"lease_ms": milliseconds(lease)}
        fields = await self.connection.request_json(
            "POST", "/v1/extend", json_body=body, repeatable=bool(message.lease_token), retry_for=retry_for
        )
        try:
            return str(fields["lease_until"])
        except (KeyError, TypeError):
            raise ProtocolError("the answer of an extend lacks 'lease_until'") from None

    async def release(self, message: Message, *, group: str, owner: str) -> None:
        """Returns a message to the queue without counting a failure."""
        await self._settle("/v1/release", claim(message, group, owner))

    async def complete(
        self,
        message: Message,
        *,
        group: str,
        owner: str,
        result: Any = None,
        produce: Sequence[Output] = (),
        dead_letter: bool = False,
        last_error: str | None = None,
        traceparent: str | None = None,
    ) -> list[Produced]:
        """Acks the message, stores the result and produces the next messages as one record, or does nothing."""
        if not message.lease_token:
            raise Misuse("a complete needs the lease token of its delivery")
        outputs = [output.as_json() for output in produce]
        body = complete_body(message, group, owner, result=result, produce=outputs)
        if dead_letter:
            fields = {"dead_letter": True} | ({"last_error": truncated(last_error)} if last_error else {})
            body = body[:-1] + b"," + encoded(fields)[1:]
        headers = {"traceparent": traceparent} if traceparent else None
        answer = await self.connection.request("POST", "/v1/complete", body=body, headers=headers, repeatable=True)
        return completed_of(decoded(answer))

    async def _settle(self, path: str, body: dict[str, Any]) -> None:
        await self.connection.request("POST", path, json_body=body, repeatable="lease_token" in body)


def default_owner() -> str:
    """Host, process id and a random part."""
    return f"{socket.gethostname()[:200]}-{os.getpid()}-{secrets.token_hex(4)}"
