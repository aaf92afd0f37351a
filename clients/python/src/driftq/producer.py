"""Produces many messages with few requests."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from driftq.batcher import Batcher
from driftq.connection import Connection, encoded
from driftq.messages import Output, Produced, produced_of

if TYPE_CHECKING:
    from typing_extensions import Self


class Producer:
    """Batches what is produced while a batch is on the wire; each message is answered by itself.

    A message without an idempotency key whose batch was cut fails with `UnknownOutcome`. Leaving the context waits
    until all is answered.
    """

    def __init__(self, connection: Connection, *, linger: float = 0.0, max_pending: int = 10_000) -> None:
        self._batcher = Batcher(connection, "/v1/produce", linger=linger, max_pending=max_pending)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.flush()

    async def produce(self, topic: str, value: str | bytes | None = None, **options: Any) -> Produced:
        """Produces one message; the options are the fields of `Output`."""
        return await self.send(Output(topic=topic, value=value, **options))

    async def send(self, output: Output) -> Produced:
        """Produces one message; waits for room where `max_pending` messages wait already."""
        fields = await self._batcher.send(encoded(output.as_json()), repeatable=bool(output.idempotency_key))
        return produced_of(fields)

    async def flush(self) -> None:
        """Waits until all that was produced so far is answered."""
        await self._batcher.flush()
