from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driftq import Client, DriftqError, Identity, Message, Permanent, StaleLease, scopes
from driftq.canonical import idempotency_key, request_hash
from driftq.events import Reporter
from driftq.side_effects import SideEffects
from driftq.testing import Broker
from support import asynchronous, fresh, needs_broker

pytestmark = needs_broker


def effects_of(client: Client, topic: str, *, owner: str = "w", lease: float = 5.0) -> SideEffects:
    message = Message(topic=topic, partition=2, offset=9, key="", value=b"v")
    return SideEffects(
        client.effects, message, group="g", owner=owner, lease=lease, reporter=Reporter(), message_is_held=lambda: True
    )


class Counted:
    """A function that counts its runs."""

    def __init__(self, result: Any = None, error: Exception | None = None) -> None:
        self.runs = 0
        self._result = result
        self._error = error

    def __call__(self) -> Any:
        self.runs += 1
        if self._error is not None:
            raise self._error
        return self._result


@asynchronous
async def test_identity_is_that_of_the_contract(driftq_broker: Broker) -> None:
    topic = fresh("t/x")
    async with Client(driftq_broker.url) as client:
        assert await effects_of(client, topic).run("mail", {"to": "a"}, Counted({"sent": 1})) == {"sent": 1}
        scope = scopes.task(idempotency_key(topic, "g", "2:9"))
        effect = await client.effects.get(Identity(scope, idempotency_key("mail", request_hash({"to": "a"}))))
        assert effect is not None
        assert effect.result == {"sent": 1}


@asynchronous
async def test_function_runs_once_per_name_and_arguments(driftq_broker: Broker) -> None:
    async with Client(driftq_broker.url) as client:
        effects, function = effects_of(client, fresh("t")), Counted([1])
        for name, args in (("a", {"x": 1, "y": 2}), ("a", {"y": 2, "x": 1}), ("b", {"x": 1, "y": 2}), ("a", None)):
            assert await effects.run(name, args, function) == [1]
        assert function.runs == 3


@asynchronous
async def test_permanent_failure_is_stored_and_raised_again(driftq_broker: Broker) -> None:
    async with Client(driftq_broker.url) as client:
        effects, function = effects_of(client, fresh("t")), Counted(error=Permanent("card expired"))
        for _ in range(2):
            with pytest.raises(Permanent, match="card expired"):
                await effects.run("charge", 1, function)
        assert function.runs == 1


@asynchronous
async def test_other_failure_is_raised_and_run_again(driftq_broker: Broker) -> None:
    async with Client(driftq_broker.url) as client:
        effects, function = effects_of(client, fresh("t")), Counted(error=OSError("timeout"))
        for _ in range(2):
            with pytest.raises(OSError, match="timeout"):
                await effects.run("charge", 1, function)
        assert function.runs == 2


@pytest.mark.parametrize("result", [b"bytes", float("inf"), "x" * 100_000], ids=["bytes", "infinity", "too large"])
@asynchronous
async def test_result_that_cannot_be_stored_is_permanent_and_not_run_again(driftq_broker: Broker, result: Any) -> None:
    async with Client(driftq_broker.url) as client:
        effects, function = effects_of(client, fresh("t")), Counted(result)
        for _ in range(2):
            with pytest.raises(Permanent, match="cannot be stored"):
                await effects.run("charge", 1, function)
        assert function.runs == 1


@asynchronous
async def test_effect_in_progress_elsewhere_is_waited_for(driftq_broker: Broker) -> None:
    topic = fresh("t")
    started, release = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        started.set()
        await release.wait()
        return "first"

    async with Client(driftq_broker.url) as client:
        first = asyncio.create_task(effects_of(client, topic, lease=0.5).run("x", 1, slow))
        await started.wait()
        function = Counted("second")
        second = asyncio.create_task(effects_of(client, topic, owner="other", lease=0.5).run("x", 1, function))
        # Longer than the lease: heartbeats keep the effect.
        await asyncio.sleep(1.2)
        assert not second.done()
        release.set()
        assert (await first, await second, function.runs) == ("first", "first", 0)


@asynchronous
async def test_lost_lease_of_an_effect_cancels_its_function(driftq_broker: Broker) -> None:
    topic = fresh("t")
    cancelled = asyncio.Event()

    async def slow() -> None:
        await client.effects.forget(identity)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with Client(driftq_broker.url) as client:
        identity = Identity(scopes.task(idempotency_key(topic, "g", "2:9")), idempotency_key("x", request_hash(1)))
        with pytest.raises(StaleLease):
            await effects_of(client, topic, lease=0.5).run("x", 1, slow)
        assert cancelled.is_set()


@asynchronous
async def test_cancelled_effect_is_recorded_so_that_the_next_attempt_need_not_wait(driftq_broker: Broker) -> None:
    topic = fresh("t")
    started = asyncio.Event()

    async def slow() -> None:
        started.set()
        await asyncio.Event().wait()

    async with Client(driftq_broker.url) as client:
        running = asyncio.create_task(effects_of(client, topic, lease=60).run("x", 1, slow))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await effects_of(client, topic, owner="next").run("x", 1, Counted("done")) == "done"


@asynchronous
async def test_arguments_that_are_no_json_are_misuse_before_anything_runs(driftq_broker: Broker) -> None:
    async with Client(driftq_broker.url) as client:
        function = Counted()
        with pytest.raises(DriftqError, match="set"):
            await effects_of(client, fresh("t")).run("x", {1}, function)
        assert function.runs == 0


class LateStore:
    """A store whose begins are answered late."""

    def __init__(self, store: Any, late: float) -> None:
        self._store = store
        self._late = late
        self.renewed: list[str] = []

    async def begin(self, identity: Identity, **options: Any) -> Any:
        decision = await self._store.begin(identity, **options)
        await asyncio.sleep(self._late)
        return decision

    async def renew(self, identity: Identity, *, lease_token: str, lease: float) -> Any:
        self.renewed.append(lease_token)
        return await self._store.renew(identity, lease_token=lease_token, lease=lease)

    def effects_of(self, message: Message, *, lease: float) -> SideEffects:
        return SideEffects(
            self,  # type: ignore[arg-type]
            message,
            group="g",
            owner="w",
            lease=lease,
            reporter=Reporter(),
            message_is_held=lambda: True,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@asynchronous
async def test_grant_that_came_late_is_renewed_before_the_function_runs(driftq_broker: Broker) -> None:
    renewals_before: list[int] = []
    async with Client(driftq_broker.url) as client:
        store = LateStore(client.effects, late=1.5)
        message = Message(topic=fresh("t"), partition=2, offset=9, key="", value=b"v")
        effects = store.effects_of(message, lease=3.0)
        assert await effects.run("charge", 1, lambda: renewals_before.append(len(store.renewed))) is None
        assert renewals_before == [1]


@asynchronous
async def test_grant_that_is_gone_when_it_arrives_is_not_used(driftq_broker: Broker) -> None:
    async with Client(driftq_broker.url) as client:
        store = LateStore(client.effects, late=1.0)
        message = Message(topic=fresh("t"), partition=2, offset=9, key="", value=b"v")
        effects = store.effects_of(message, lease=0.4)
        function = Counted()
        running = asyncio.create_task(effects.run("charge", 1, function))
        await asyncio.sleep(0.7)
        # The lease of its grant has ended, and another worker has the effect.
        assert await effects_of(client, message.topic, owner="other").run("charge", 1, Counted("other's")) == "other's"
        with pytest.raises(DriftqError):
            await running
        assert function.runs == 0
