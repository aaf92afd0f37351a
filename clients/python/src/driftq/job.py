"""What all deliveries of one worker share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from driftq.batcher import Batcher
from driftq.broker_store import begin_body
from driftq.client import Client
from driftq.connection import encoded
from driftq.context import Context
from driftq.errors import InProgress
from driftq.events import Reporter
from driftq.messages import Message
from driftq.scopes import Delivery, Identity, Scope
from driftq.slots import Slots
from driftq.store import Decision, InProgressElsewhere, Store, decision_of
from driftq.tracing import Tracer

Handler = Callable[[Message, Context], Awaitable[Any] | Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The settings of a worker and what its deliveries use together."""

    client: Client
    topic: str
    group: str
    owner: str
    lease: float
    handler: Handler
    scope: Scope | None
    """The scope of the effects; `None`: no store."""
    store: Store | None
    """A store other than the broker's."""
    per_key_order: bool
    retry_delay: float | None
    tracer: Tracer | None
    reporter: Reporter
    slots: Slots
    stopping: asyncio.Event
    threads: Executor
    begins: Batcher
    completes: Batcher
    held: set[Identity]
    """The effects that this worker has been granted and has not ended."""

    @property
    def effects(self) -> Store:
        """The store of effects."""
        return self.store if self.store is not None else self.client.effects

    @property
    def is_atomic(self) -> bool:
        """Whether a complete ends the effect in the same record: the broker's store, and the scope of the message."""
        return self.store is None and self.scope is not None and self.scope.kind == "consume"

    def identity_of(self, message: Message) -> Identity | None:
        """The identity of the effect of a message; `None` where there is none."""
        if self.scope is None or not message.idempotency_key:
            return None
        return Identity(self.scope, message.idempotency_key, message.envelope.tenant_id or "")

    def delivery_of(self, message: Message) -> Delivery | None:
        """The delivery that fences a begin; only the scope of a group's work on a message has one."""
        if self.scope is None or self.scope.kind != "consume":
            return None
        return Delivery(message.partition, message.offset, message.lease_token)

    async def lost_its_begin(self, identity: Identity) -> bool:
        """Whether an effect in progress is this worker's own, by a begin whose answer was lost.

        The next delivery of its message takes it over at once, so nothing is gained by waiting for its lease to end.
        """
        if identity in self.held:
            return False
        effect = await self.effects.get(identity)
        return effect is not None and effect.owner == self.owner

    async def begin(self, identity: Identity, message: Message) -> Decision:
        """Begins the effect of a message; with the broker's store together with those of other messages."""
        delivery = self.delivery_of(message)
        if self.store is not None:
            return await self.store.begin(identity, owner=self.owner, lease=self.lease, delivery=delivery)
        body = encoded(begin_body(identity, self.owner, self.lease, delivery))
        try:
            return decision_of(await self.begins.send(body, repeatable=True))
        except InProgress as error:
            return InProgressElsewhere(error.retry_after or 0.0)
