from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driftq import Client, InvalidRequest, Misuse, Overloaded, Produced, ProtocolError, UnknownOutcome
from stub import Reply, Request, Stub, error, ndjson
from support import asynchronous


def answers(request: Request) -> Reply:
    """Stores each message at an offset that is the number in its value."""
    if request.headers["content-type"] != "application/x-ndjson":
        return Reply(body={"status": "produced", "topic": "t", "partition": 0, "offset": int(request.json["value"])})
    return ndjson(*({"status": 200, "partition": 0, "offset": int(line["value"])} for line in request.lines))


async def produce_all(client: Client, count: int, **options: Any) -> list[Produced | BaseException]:
    async with client.producer(**options) as producer:
        return await asyncio.gather(
            *(producer.produce("t", str(n), idempotency_key=f"k{n}") for n in range(count)), return_exceptions=True
        )


@asynchronous
async def test_each_message_gets_its_own_answer_and_batches_are_bounded() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", answers)
        produced = await produce_all(client, 2500)
        assert [entry.offset for entry in produced if isinstance(entry, Produced)] == list(range(2500))
        sizes = [len(request.lines) for request in stub.received("/v1/produce")]
        assert sum(sizes) == 2500
        assert max(sizes) == 1000
        assert len(sizes) <= 4


@asynchronous
async def test_batch_holds_one_mebibyte_at_most() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", sized)
        async with client.producer() as producer:
            await asyncio.gather(*(producer.produce("t", "x" * 300_000, idempotency_key=str(n)) for n in range(7)))
        assert max(len(request.body) for request in stub.received("/v1/produce")) <= 1 << 20


def sized(request: Request) -> Reply:
    stored = {"status": 200, "partition": 0, "offset": 0}
    return ndjson(*(stored for _ in request.lines)) if len(request.lines) > 1 else Reply(body=stored)


@asynchronous
async def test_message_alone_is_a_plain_request() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", answers)
        (produced,) = await produce_all(client, 1)
        assert isinstance(produced, Produced)
        assert stub.received("/v1/produce")[0].headers["content-type"] == "application/json"


@asynchronous
async def test_refused_line_fails_alone() -> None:
    refused = {"status": 400, "error": "INVALID_ARGUMENT", "message": "no"}
    stored = {"status": 200, "partition": 0, "offset": 1}
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", ndjson(stored, refused, stored))
        first, second, third = await produce_all(client, 3)
        assert isinstance(second, InvalidRequest)
        assert isinstance(first, Produced)
        assert isinstance(third, Produced)


@pytest.mark.parametrize(
    "refusal",
    [{"status": 429, "error": "RESOURCE_EXHAUSTED"}, {"status": 503, "error": "UNAVAILABLE", "committed": "no"}],
    ids=["429", "503"],
)
@asynchronous
async def test_line_that_was_not_carried_out_is_sent_again_alone(refusal: dict[str, Any]) -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", ndjson({"status": 200, "partition": 0, "offset": 0}, refusal), answers)
        async with client.producer() as producer:
            produced = await asyncio.gather(producer.produce("t", "0"), producer.produce("t", "1"))
        assert [entry.offset for entry in produced] == [0, 1]
        assert [request.body.count(b'"topic"') for request in stub.received("/v1/produce")] == [2, 1]


@asynchronous
async def test_line_that_stays_refused_fails_after_retry_for() -> None:
    refusal = error(429, "RESOURCE_EXHAUSTED", headers={"Retry-After": "5"})
    async with Stub() as stub, Client(stub.url, retry_for=0.2) as client:
        stub.on("POST", "/v1/produce", ndjson({"status": 429, "error": "X"}, {"status": 429, "error": "X"}), refusal)
        for failure in await produce_all(client, 2):
            assert isinstance(failure, Overloaded)


@asynchronous
async def test_cut_batch_keeps_what_was_answered_and_repeats_only_what_has_a_key() -> None:
    def cut(request: Request) -> Reply:
        reply = ndjson(*({"status": 200, "partition": 0, "offset": n} for n in range(3)))
        whole = b"".join(b'{"status": 200, "partition": 0, "offset": %d}\n' % n for n in range(3))
        reply.body, reply.cut_after = whole, whole.index(b"\n") + 10
        return reply

    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", cut, answers)
        async with client.producer() as producer:
            first, second, third = await asyncio.gather(
                producer.produce("t", "0"),
                producer.produce("t", "1"),
                producer.produce("t", "2", idempotency_key="k2"),
                return_exceptions=True,
            )
        assert isinstance(first, Produced)
        assert isinstance(second, UnknownOutcome)
        assert not second.retry_is_safe
        assert isinstance(third, Produced)
        assert third.offset == 2
        assert len(stub.received("/v1/produce")) == 2


@asynchronous
async def test_cut_batch_whose_messages_all_have_keys_is_repeated() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", Reply(reset=True), answers)
        assert all(isinstance(entry, Produced) for entry in await produce_all(client, 5))
        assert [len(request.lines) for request in stub.received("/v1/produce")] == [5, 5]


@pytest.mark.parametrize(
    "answer",
    [
        Reply(body={"status": "produced"}),
        Reply(body=b"nonsense\nnonsense\n", content_type="application/x-ndjson"),
        Reply(body=b"<html>", content_type="text/html"),
    ],
    ids=["json instead of lines", "no json", "web page"],
)
@asynchronous
async def test_answer_that_is_no_batch_fails_each_message(answer: Reply) -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", answer)
        for failure in await produce_all(client, 2):
            assert isinstance(failure, ProtocolError)


@asynchronous
async def test_produce_waits_where_too_many_are_pending() -> None:
    release, arrived = asyncio.Event(), asyncio.Event()
    largest = 0

    async def held(request: Request) -> Reply:
        nonlocal largest
        largest = max(largest, len(request.lines) if request.body.count(b"\n") else 1)
        arrived.set()
        await release.wait()
        return answers(request)

    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", held)
        producing = asyncio.create_task(produce_all(client, 100, max_pending=10))
        await arrived.wait()
        release.set()
        produced = await producing
        assert all(isinstance(entry, Produced) for entry in produced)
        assert largest <= 11


@asynchronous
async def test_linger_collects_messages_and_flush_ends_it() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", answers)
        producer = client.producer(linger=60)
        first = asyncio.create_task(producer.produce("t", "1"))
        await asyncio.sleep(0)
        second = asyncio.create_task(producer.produce("t", "2"))
        await asyncio.sleep(0)
        await producer.flush()
        assert ((await first).offset, (await second).offset) == (1, 2)
        assert len(stub.received("/v1/produce")) == 1
        with pytest.raises(Misuse):
            client.producer(linger=-1)
