"""The adapter of the conformance protocol, as a runner uses it: a process, with a ledger of its own beside it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from driftq import Client, Identity, scopes
from driftq.testing import Broker
from stub import Reply, Request, Stub
from support import asynchronous, fresh, needs_broker


class AdapterProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._numbers = itertools.count()

    async def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(await self.process.stdout.readline())

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        number = next(self._numbers)
        self.process.stdin.write(json.dumps({"id": number, "op": op, **fields}).encode() + b"\n")
        answer = await self.line()
        assert answer.pop("id") == number
        return answer

    async def ok(self, op: str, **fields: Any) -> Any:
        answer = await self.ask(op, **fields)
        assert "ok" in answer, answer
        return answer["ok"]

    async def events(self, worker: str, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Asks for events until one has come so often."""
        found: list[dict[str, Any]] = []
        while len([event for event in found if event["event"] == name]) < count:
            found += (await self.ok("worker_events", worker=worker))["events"]
            await asyncio.sleep(0.02)
        return found


@asynccontextmanager
async def adapter() -> AsyncIterator[AdapterProcess]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "driftq.conformance", stdin=pipe, stdout=pipe, env=os.environ
    )
    started = AdapterProcess(process)
    try:
        assert await started.line() == {"adapter": "python", "contract": 1}
        yield started
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def ledger() -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    entries: list[dict[str, Any]] = []

    def record(request: Request) -> Reply:
        entries.append(request.json)
        return Reply(204)

    async with Stub() as stub:
        stub.on("POST", "/effect", record)
        yield stub.url, entries


@asynchronous
async def test_keys_hashes_and_errors_need_no_broker() -> None:
    async with adapter() as client:
        assert await client.ok("idempotency_key", parts=["order", 7, True]) == "order:7:true"
        assert len(await client.ok("request_hash", value_json='{"b":1,"a":[2]}')) == 64
        for op, fields in (
            ("idempotency_key", {"parts": []}),
            ("request_hash", {"value_json": "[1e400]"}),
            ("request_hash", {"value_json": "{"}),
            ("connect", {"urls": ["no-scheme"]}),
            ("produce", {"topic": "t", "value": "v"}),
            ("nonsense", {}),
            ("produce", {}),
            ("worker_stop", {"worker": "w"}),
        ):
            assert (await client.ask(op, **fields))["error"]["kind"] == "misuse"


@asynchronous
async def test_error_has_the_fields_of_the_protocol() -> None:
    async with adapter() as client, Stub() as stub:
        stub.on("POST", "/v1/produce", Reply(503, {"error": "UNAVAILABLE", "message": "stopping"}))
        await client.ok("connect", urls=[stub.url], retry_for_ms=100, key="k")
        assert await client.ask("produce", topic="t", value="v") == {
            "error": {
                "kind": "unknown",
                "status": 503,
                "code": "UNAVAILABLE",
                "message": "stopping",
                "retry_is_safe": False,
            }
        }


@needs_broker
@asynchronous
async def test_worker_does_the_steps_of_its_handler(driftq_broker: Broker) -> None:
    topic, following = fresh("t"), fresh("t")
    async with adapter() as client, ledger() as (url, entries):
        await client.ok("connect", urls=[driftq_broker.url])
        for name in (topic, following):
            assert await client.ok("create_topic", topic=name) == {"partitions": 1}
        steps = [
            {"do": "effect", "name": "plain-{attempt}"},
            {"do": "side_effect", "name": "once-{key}", "args": {"a": 1}},
            {"do": "sleep", "ms": 1},
            {"do": "fail", "kind": "retry", "text": "again", "delay_ms": 1, "attempts": 1},
            {"do": "fail", "kind": "panic", "text": "boom", "attempts": 2},
            {"do": "outputs", "messages": [{"topic": following, "value": "{message}", "idempotency_key": "n-{key}"}]},
        ]
        await client.ok("worker_start", worker="w", topic=topic, group="g", handler=steps, ledger=url, lease_ms=2000)
        produced = await client.ok("produce_many", topic=topic, messages=[{"value": "v", "idempotency_key": "k"}])
        assert produced["results"][0]["ok"]["offset"] == 0
        events = await client.events("w", "completed")
        assert {"connected", "received", "began", "failed", "completed"} <= {event["event"] for event in events}
        stopped = await client.ok("worker_stop", worker="w")
        assert stopped == {"completed": 1, "failed": 2, "lost": 0}
        assert [entry["name"] for entry in entries] == ["plain-1", "once-k", "plain-2", "plain-3"]
        assert entries[0] == {"name": "plain-1", "message": f"{topic}/0/0", "attempt": 1, "worker": "w"}
        async with Client(driftq_broker.url) as direct:
            (message,) = await direct.peek(following, partition=0)
            assert (message.text, message.idempotency_key) == (f"{topic}/0/0", "n-k")
            effect = await direct.effects.get(Identity(scopes.consume(topic, "g"), "k"))
            assert effect is not None
            assert effect.result == {"done": "k"}


@needs_broker
@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"do": "not_json"}, "the handler's result: $: nan is no JSON value"),
        ({"do": "fail", "kind": "permanent", "text": "never"}, "never"),
    ],
)
@asynchronous
async def test_handler_that_cannot_succeed_makes_a_dead_letter(
    driftq_broker: Broker, step: dict[str, Any], reason: str
) -> None:
    topic = fresh("t")
    async with adapter() as client:
        await client.ok("connect", urls=[driftq_broker.url])
        await client.ok("create_topic", topic=topic)
        assert (await client.ok("produce", topic=topic, value="v", idempotency_key="k"))["duplicate"] is False
        await client.ok("worker_start", worker="w", topic=topic, group="g", handler=[step])
        await client.events("w", "failed")
        async with Client(driftq_broker.url) as direct:
            (dead,) = await direct.dlq.peek(topic, partition=0)
            assert dead.envelope.dlq is not None
            assert dead.envelope.dlq.last_error == reason


@needs_broker
@asynchronous
async def test_effects_are_asked_for_as_they_are(driftq_broker: Broker) -> None:
    async with adapter() as client:
        await client.ok("connect", urls=[driftq_broker.url])
        identity = {"scope": {"kind": "job", "id": "j"}, "key": fresh("k")}
        begun = await client.ok("effect", identity=identity, action="begin", owner="w", lease_ms=5000)
        assert begun["decision"] == "EXECUTE"
        refused = await client.ask("effect", identity=identity, action="begin", owner="w2")
        assert refused["error"]["kind"] == "in_progress"
        token = begun["lease_token"]
        assert "lease_until" in await client.ok("effect", identity=identity, action="renew", lease_token=token)
        finish = {"action": "finish", "lease_token": token, "status": "SUCCEEDED", "result": [1]}
        assert await client.ok("effect", identity=identity, **finish) == {"ok": True}
        assert (await client.ok("effect", identity=identity, action="get"))["result"] == [1]
        assert await client.ok("effect", identity=identity, action="forget") == {}
        assert (await client.ask("effect", identity=identity, action="get"))["error"]["kind"] == "not_found"


@needs_broker
@asynchronous
async def test_end_of_input_releases_what_runs(driftq_broker: Broker) -> None:
    topic = fresh("t")
    async with Client(driftq_broker.url) as direct:
        await direct.topics.create(topic)
        await direct.produce(topic, "v", idempotency_key="k")
        async with adapter() as client:
            await client.ok("connect", urls=[driftq_broker.url])
            handler = [{"do": "sleep", "ms": 60_000}]
            await client.ok("worker_start", worker="w", topic=topic, group="g", handler=handler, grace_ms=50)
            await client.events("w", "began")
        (found,) = (await direct.topics.describe(topic))["groups"]
        assert found["partitions"][0]["in_flight"] == 0
