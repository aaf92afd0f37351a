"""Workers against a real broker: what is left in it afterwards."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from driftq import Client, Context, Identity, Message, Output, Outputs, Permanent, Retry, RetryPolicy, Worker, scopes
from driftq.testing import Broker, broker
from support import Events, asynchronous, fresh, needs_broker

pytestmark = needs_broker


async def work(client: Client, topic: str, handler: Any, event: str, count: int = 1, **options: Any) -> Events:
    events = Events()
    worker = Worker(client, topic, "g", handler, on_event=events, stop_on=(), **options)
    running = asyncio.create_task(worker.run())
    waiting = asyncio.create_task(events.wait_for(event, count))
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    worker.stop()
    await running
    return events


async def lag(client: Client, topic: str, group: str = "g") -> tuple[int, int]:
    """Messages not acked, and in flight."""
    groups = (await client.topics.describe(topic))["groups"]
    partitions = [entry for found in groups if found["group"] == group for entry in found["partitions"]]
    return sum(entry["lag"] for entry in partitions), sum(entry["in_flight"] for entry in partitions)


@asynchronous
async def test_messages_are_handled_once_and_results_stored(driftq_broker: Broker) -> None:
    topic = fresh("orders")
    handled: Counter[str] = Counter()

    async def handle(message: Message, context: Context) -> dict[str, Any]:
        handled[message.text] += 1
        return {"baked": message.json()["n"]}

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic, partitions=3)
        async with client.producer() as producer:
            await asyncio.gather(
                *(producer.produce(topic, json={"n": n}, key=f"c{n}", idempotency_key=f"o{n}") for n in range(200))
            )
        await work(client, topic, handle, "completed", 200)
        assert len(handled) == 200
        assert set(handled.values()) == {1}
        assert await lag(client, topic) == (0, 0)
        effect = await client.effects.get(Identity(scopes.consume(topic, "g"), "o7"))
        assert effect is not None
        assert (effect.status, effect.result, effect.attempt) == ("SUCCEEDED", {"baked": 7}, 1)


@asynchronous
async def test_outputs_become_the_next_messages(driftq_broker: Broker) -> None:
    first, second = fresh("step"), fresh("step")

    async def handle(message: Message, context: Context) -> Outputs:
        return Outputs(Output(topic=second, json=message.json(), idempotency_key=f"{message.id}:next"), result="ok")

    async with Client(driftq_broker.url) as client:
        await client.topics.create(first)
        await client.topics.create(second)
        await client.produce(first, json=[1], idempotency_key="a")
        await work(client, first, handle, "completed")
        (message,) = await client.peek(second, partition=0)
        assert message.json() == [1]
        assert message.idempotency_key == f"{first}/0/0:next"


@asynchronous
async def test_later_message_of_a_finished_identity_is_replayed(driftq_broker: Broker) -> None:
    topic, other = fresh("t"), fresh("t")
    runs = []

    async def handle(message: Message, context: Context) -> str:
        runs.append(message.id)
        return "result"

    async with Client(driftq_broker.url) as client:
        for name in (topic, other):
            await client.topics.create(name)
            await client.produce(name, "v", idempotency_key="same")
        await work(client, topic, handle, "completed", scope=scopes.job("j"))
        events = await work(client, other, handle, "completed", scope=scopes.job("j"))
        assert [event.fields["decision"] for event in events.named("began")] == ["REPLAY"]
        assert runs == [f"{topic}/0/0"]
        assert await lag(client, other) == (0, 0)


@asynchronous
async def test_failed_message_is_delivered_again_with_its_reason(driftq_broker: Broker) -> None:
    topic = fresh("t")
    seen = []

    async def handle(message: Message, context: Context) -> None:
        seen.append((message.attempts, message.last_error, context.attempt))
        if message.attempts == 1:
            raise Retry("oven is cold")
        if message.attempts == 2:
            raise ValueError("burnt")

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic)
        await client.produce(topic, "v", idempotency_key="k")
        await work(client, topic, handle, "completed", retry_delay=0.05)
        assert seen == [(1, "", 1), (2, "oven is cold", 2), (3, "ValueError: burnt", 3)]
        assert await lag(client, topic) == (0, 0)


@pytest.mark.parametrize("key", ["k", None], ids=["with key", "without key"])
@asynchronous
async def test_permanent_failure_is_a_dead_letter(driftq_broker: Broker, key: str | None) -> None:
    topic = fresh("t")

    async def handle(message: Message, context: Context) -> None:
        raise Permanent("no such dish")

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic)
        await client.produce(topic, "v", idempotency_key=key)
        await work(client, topic, handle, "failed")
        (dead,) = await client.dlq.peek(topic, partition=0)
        assert dead.envelope.dlq is not None
        assert (dead.envelope.dlq.reason, dead.envelope.dlq.last_error) == ("non_retryable", "no such dish")
        assert await lag(client, topic) == (0, 0)
        if key:
            effect = await client.effects.get(Identity(scopes.consume(topic, "g"), key))
            assert effect is not None
            assert effect.status == "FAILED_FINAL"
        # Redriven, its effect is replayed as failed: it becomes a dead letter again, and the handler does not run.
        assert await client.dlq.redrive(topic) == 1


@asynchronous
async def test_result_that_is_no_json_is_a_dead_letter_that_says_where(driftq_broker: Broker) -> None:
    topic = fresh("t")

    async def handle(message: Message, context: Context) -> Any:
        return {"pizza": [float("nan")]}

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic)
        await client.produce(topic, "v", idempotency_key="k")
        await work(client, topic, handle, "failed")
        (dead,) = await client.dlq.peek(topic, partition=0)
        assert dead.envelope.dlq is not None
        assert "$.pizza[0]" in dead.envelope.dlq.last_error


@asynchronous
async def test_result_that_is_too_large_is_a_dead_letter(driftq_broker: Broker) -> None:
    topic = fresh("t")

    async def handle(message: Message, context: Context) -> str:
        return "x" * 100_000

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic)
        await client.produce(topic, "v", idempotency_key="k")
        await work(client, topic, handle, "failed")
        assert len(await client.dlq.peek(topic, partition=0)) == 1


@asynchronous
async def test_attempts_end_in_a_dead_letter(driftq_broker: Broker) -> None:
    topic = fresh("t")

    async def handle(message: Message, context: Context) -> None:
        raise Retry("again")

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic)
        await client.produce(topic, "v", retry_policy=RetryPolicy(max_attempts=3, backoff_ms=1))
        await work(client, topic, handle, "failed", 3)
        (dead,) = await client.dlq.peek(topic, partition=0)
        assert dead.envelope.dlq is not None
        assert (dead.envelope.dlq.attempts, dead.envelope.dlq.reason) == (3, "max_attempts")


@asynchronous
async def test_heartbeats_keep_a_message_longer_than_its_lease(driftq_broker: Broker) -> None:
    topic = fresh("t")
    runs = []

    async def handle(message: Message, context: Context) -> None:
        runs.append(message.attempts)
        await asyncio.sleep(1.5)

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic)
        await client.produce(topic, "v", idempotency_key="k")
        events = await work(client, topic, handle, "completed", lease=0.6)
        assert runs == [1]
        assert events.named("lease_lost") == []


@asynchronous
async def test_expired_lease_is_taken_by_another_worker_and_the_first_result_is_discarded(
    driftq_broker: Broker,
) -> None:
    topic = fresh("t")
    runs = []
    first_runs = asyncio.Event()

    async def handle(message: Message, context: Context) -> str:
        runs.append(message.attempts)
        if message.attempts == 1:
            first_runs.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "stale"
        return "fresh"

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic)
        await client.produce(topic, "v", idempotency_key="k")
        running = asyncio.create_task(work(client, topic, handle, "completed", lease=1.0))
        await first_runs.wait()
        await client.groups.expire(topic, "g", partition=0, offset=0)
        await running
        effect = await client.effects.get(Identity(scopes.consume(topic, "g"), "k"))
        assert effect is not None
        assert (effect.result, runs) == ("fresh", [1, 2])


@asynchronous
async def test_stopped_worker_holds_no_lease(driftq_broker: Broker) -> None:
    topic = fresh("t")

    async def handle(message: Message, context: Context) -> None:
        await asyncio.Event().wait()

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic)
        await asyncio.gather(*(client.produce(topic, "v", idempotency_key=f"k{n}") for n in range(8)))
        events = await work(client, topic, handle, "began", 2, concurrency=2, grace=0.05)
        assert len(events.named("released")) >= 2
        assert await lag(client, topic) == (8, 0)


@asynchronous
async def test_no_more_handlers_run_than_there_are_slots(driftq_broker: Broker) -> None:
    topic = fresh("t")
    running = most = 0

    async def handle(message: Message, context: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic, partitions=4)
        await asyncio.gather(*(client.produce(topic, "v", partition_override=n % 4) for n in range(40)))
        await work(client, topic, handle, "completed", 40, concurrency=3)
    assert most == 3


@asynchronous
async def test_side_effect_runs_once_over_failing_attempts(driftq_broker: Broker) -> None:
    topic = fresh("t")
    charged = []

    async def handle(message: Message, context: Context) -> Any:
        async def charge() -> dict[str, int]:
            charged.append(message.attempts)
            return {"receipt": 7}

        receipt = await context.side_effect("charge", {"amount": 3}, charge)
        if message.attempts < 3:
            raise Retry("after the charge")
        return receipt

    async with Client(driftq_broker.url) as client:
        await client.topics.create(topic)
        await client.produce(topic, "v", idempotency_key="k")
        await client.produce(topic, "v")
        await work(client, topic, handle, "completed", 2)
        assert charged == [1, 1]
        effect = await client.effects.get(Identity(scopes.consume(topic, "g"), "k"))
        assert effect is not None
        assert effect.result == {"receipt": 7}


@asynchronous
async def test_worker_survives_a_crash_of_the_broker() -> None:
    done: Counter[str] = Counter()

    async def handle(message: Message, context: Context) -> str:
        done[message.text] += 1
        if done.total() == 20:
            running.kill()
            running.start()
        return message.text

    with broker(keep_log=True) as running:
        async with Client(running.url) as client:
            await client.topics.create("t")
            await asyncio.gather(*(client.produce("t", f"{n}", idempotency_key=f"k{n}") for n in range(60)))
            events = Events()
            worker = Worker(client, "t", "g", handle, on_event=events, stop_on=(), concurrency=4, lease=1.0)
            task = asyncio.create_task(worker.run())
            while await lag(client, "t") != (0, 0) or len(done) < 60:
                await events.wait_for("completed", len(events.named("completed")) + 1)
            worker.stop()
            await task
            assert len(events.named("connected")) >= 2
            results = [await client.effects.get(Identity(scopes.consume("t", "g"), f"k{n}")) for n in range(60)]
            assert [json.dumps(effect.result) for effect in results if effect] == [f'"{n}"' for n in range(60)]
