"""Every request and answer of the client, made with a real broker, against the broker's OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import fields
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from driftq import (
    Client,
    DeadLetter,
    Delivery,
    DriftqError,
    Effect,
    Envelope,
    Execute,
    Identity,
    Message,
    Output,
    RetryPolicy,
    scopes,
)
from driftq.admin import DEFAULT
from driftq.testing import Broker
from driftq.transport import Answer, Transport
from openapi import faults, route_of, routes, schema
from support import asynchronous, fresh, needs_broker

ADMINISTRATION = ("/v1/keys", "/v1/tenants", "/v1/audit")


class Recorder:
    """Records what goes over a transport."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str, bytes | None, str, Answer]] = []
        original = Transport.send

        async def send(transport: Transport, method: str, url: str, **options: Any) -> Answer:
            answer = await original(transport, method, url, **options)
            media_type = options["headers"].get("Content-Type", "")
            self.calls.append((method, url, options["body"], media_type, answer))
            return answer

        monkeypatch.setattr(Transport, "send", send)


async def use_everything(client: Client, streams: list[str]) -> None:
    """Makes every request that the client can make."""
    topic, group = fresh("api/t"), "g"
    server = client.server
    await asyncio.gather(server.version(), server.config(), server.digest(), server.openapi(), server.metrics())
    assert await server.healthy()
    assert await server.ready()
    await client.topics.create(topic, partitions=2, retention_ms=60_000, retention_bytes=1_000_000)
    assert topic in await client.topics.list()
    assert await client.topics.list(limit=1, after="zzz") == []
    await client.topics.change(topic, retention_ms=DEFAULT, retention_bytes=5)
    await client.groups.create(topic, group, start="earliest")
    assert await client.groups.list(topic) == [group]

    full = Output(
        topic=topic, value=b"\xff\x00", key="k", run_id="r", step_id="s", parent_step_id="p", tenant="acme",
        idempotency_key="order-1", target_topic=topic, partition_override=1, deadline="2999-01-01T00:00:00Z",
        retry_policy=RetryPolicy(max_attempts=2, backoff_ms=1, max_backoff_ms=2), priority=3, labels={"a": "b"},
    )  # fmt: skip
    async with client.producer() as producer:
        await asyncio.gather(
            producer.send(full),
            producer.produce(topic, "later", delay=0.001),
            producer.produce(topic, "at", deliver_at="2000-01-01T00:00:00Z"),
            return_exceptions=True,
        )
    await client.produce(topic, json={"n": 1}, partition_override=0, traceparent=f"00-{1:032x}-{1:016x}-01")
    for n in range(5):
        await client.produce(topic, f"{n}", idempotency_key=f"e{n}", partition_override=0)

    received: list[Message] = []
    async with aclosing(
        client.consume(topic, group, owner="o", lease=30, prefetch=50, start="earliest", wait=0.5)
    ) as stream:
        streams.append("/v1/consume")
        async for message in stream:
            received.append(message)
    binary = next(message for message in received if message.value == b"\xff\x00")
    assert (binary.envelope.tenant_id, binary.envelope.priority, binary.envelope.labels) == ("acme", 3, {"a": "b"})
    assert binary.envelope.retry_policy == RetryPolicy(2, 1, 2)
    assert (binary.attempts, binary.key, binary.partition) == (1, "k", 1)
    traced = next(message for message in received if message.trace)
    assert traced.json() == {"n": 1}
    mine = {"group": group, "owner": "o"}
    await client.extend(traced, lease=20, **mine)
    await client.release(binary, **mine)
    await client.nack(traced, reason="cold", delay=60, **mine)
    keyed = [message for message in received if message.idempotency_key.startswith("e")]
    await client.ack(keyed[0], **mine)
    await client.nack(keyed[1], reason="no such dish", retryable=False, **mine)
    await client.complete(
        keyed[2], result={"r": 1}, produce=[Output(topic=topic, value="next")], traceparent=traced.trace, **mine
    )
    await client.complete(keyed[3], dead_letter=True, last_error="why", result=1, **mine)
    await client.ack_cumulative(topic, group=group, partition=0, offset=keyed[4].offset, owner="o")
    assert len(await client.dlq.peek(topic, partition=0)) == 2
    dead = (await client.dlq.peek(topic, partition=0, limit=1))[0]
    assert dead.envelope.dlq is not None
    assert await client.dlq.redrive(topic, offsets=[dead.offset]) == 1
    assert await client.dlq.redrive(topic, limit=5) == 1
    await effects(client, topic)
    await client.groups.pause(topic, group)
    await client.groups.resume(topic, group)
    for target in ({"to": "earliest"}, {"to": "latest"}, {"offset": 0}, {"time": "2020-01-01T00:00:00Z"}):
        await client.groups.seek(topic, group, **target)  # type: ignore[arg-type]
    with pytest.raises(DriftqError):
        await client.groups.expire(topic, group, partition=0, offset=0)
    await client.topics.describe(topic)
    await client.groups.delete(topic, group)
    await client.topics.purge(topic)
    await client.topics.delete(topic)


async def effects(client: Client, topic: str) -> None:
    store = client.effects
    every = [scopes.tenant(), scopes.job("j/1"), scopes.task("t"), scopes.rpc("me", "/m"), scopes.consume(topic, "g")]
    for scope in every:
        identity = Identity(scope, fresh("key"), tenant="acme")
        granted = await store.begin(identity, owner="w", lease=5, ttl=60, request_hash="h", on_expired="take_over")
        assert isinstance(granted, Execute)
        await store.begin(identity, owner="w2", lease=5)
        await store.renew(identity, lease_token=granted.lease_token, lease=10)
        failed = "FAILED_RETRYABLE"
        await store.finish(identity, lease_token=granted.lease_token, status=failed, last_error="x")
        granted = await store.reacquire(identity, owner="w", lease=5)
        await store.finish(
            identity, lease_token=granted.lease_token, status="SUCCEEDED", result={"a": [1]}, response_code=201
        )
        assert await store.begin(identity, owner="w", expires_at="2999-01-01T00:00:00Z")
        assert await store.get(identity) is not None
    records, _ = await store.list(tenant="acme", status="SUCCEEDED", limit=10, older_than=0)
    assert {record.identity.scope for record in records} >= set(every)
    assert await store.forget(identity)
    assert not await store.forget(identity)
    missing = Delivery(0, 10_000, "f" * 24)
    with pytest.raises(DriftqError):
        await store.begin(Identity(scopes.consume(topic, "g"), "x"), owner="w", delivery=missing)
    assert not (await store.list(kind="job", tenant="nobody", after=None))[0]


@needs_broker
@asynchronous
async def test_requests_and_answers_are_as_the_document_says(
    driftq_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, streams = Recorder(monkeypatch), []
    async with Client(driftq_broker.url) as client:
        await use_everything(client, streams)
    used = {("GET", path) for path in streams}
    wrong = []
    for method, url, body, media_type, answer in recorder.calls:
        parts = urlsplit(url)
        route = route_of(method, parts.path)
        used.add(route)
        wrong += [f"{route} {fault}" for fault in _call_faults(routes()[route], parts.query, body, media_type, answer)]
    assert wrong == []
    # Tests ask a broker with faults which ones it has played; the client does not. Nor does it what administrators do.
    others = {(method, path) for method, path in routes().keys() - used if not path.startswith(ADMINISTRATION)}
    assert others == {("GET", "/v1/chaos")}


def _call_faults(
    operation: dict[str, Any], query: str, body: bytes | None, media_type: str, answer: Answer
) -> list[str]:
    known = {entry.get("name") for entry in operation.get("parameters", [])}
    names = dict(parse_qsl(query))
    found = [f"query {name}" for name in names if known and name not in known]
    if body:
        rule = operation["requestBody"]["content"][media_type]["schema"]
        texts = body.splitlines() if "ndjson" in media_type else [body]
        found += [fault for text in texts for fault in faults(json.loads(text), rule, "request")]
    described = operation["responses"].get(str(answer.status))
    if described is None or "$ref" in described or not answer.body:
        return found if described or answer.status >= 400 else [*found, f"undocumented status {answer.status}"]
    rule = described["content"].get(answer.media_type, {}).get("schema")
    if rule is None:
        return [*found, f"undocumented type {answer.media_type}"]
    if rule.get("type") == "string":
        return found
    texts = answer.body.splitlines() if "ndjson" in answer.media_type else [answer.body]
    return found + [fault for text in texts for fault in faults(json.loads(text), rule, "answer")]


def names_of(kind: Any) -> set[str]:
    return {entry.name for entry in fields(kind)}


def test_types_have_the_fields_of_the_document() -> None:
    item = set(schema("Item")["properties"]) - {"value_base64"} | {"topic"}
    assert names_of(Message) == item
    assert names_of(Envelope) == set(schema("ItemEnvelope")["properties"])
    assert names_of(DeadLetter) == set(schema("DeadLetter")["properties"])
    assert names_of(RetryPolicy) == set(schema("RetryPolicy")["properties"])
    assert names_of(Effect) == set(schema("Effect")["properties"])
    assert names_of(Execute) | {"decision", "status", "status_v1"} == set(schema("Execute")["properties"])
    renamed = {"tenant_id": "tenant", "delay_ms": "delay"}
    envelope = {renamed.get(name, name) for name in schema("Envelope")["properties"]}
    body = set(schema("Produce")["properties"]) - {"envelope", "value_base64"}
    assert names_of(Output) == envelope | body | {"json"}
    every = [scopes.consume("t", "g"), scopes.tenant(), scopes.job("j"), scopes.task("t"), scopes.rpc("p", "m")]
    assert {scope.kind for scope in every} == {
        entry["properties"]["kind"]["const"] for entry in schema("Scope")["oneOf"]
    }


def test_check_finds_what_is_wrong() -> None:
    produce = schema("Produce")
    assert faults({"topic": "t", "value": "v"}, produce) == []
    for wrong in ({"topic": "t"}, {"topic": "t", "value": "v", "extra": 1}, {"topic": "t", "value": 1}, {"value": "v"}):
        assert faults(wrong, produce) != []
