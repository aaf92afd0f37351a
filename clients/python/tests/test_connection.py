from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from driftq import (
    Client,
    InvalidRequest,
    Misuse,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)
from driftq.backoff import Backoff
from driftq.endpoints import Endpoints
from stub import VERSION, Reply, Stub, error
from support import Events, asynchronous

PRODUCED = Reply(body={"status": "produced", "topic": "t", "partition": 0, "offset": 7})


def refused_url() -> str:
    """The URL of a port at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@asynchronous
async def test_wrong_key_is_unauthenticated_and_never_shown() -> None:
    async with Stub() as stub:
        stub.on("GET", "/v1/version", error(401, "UNAUTHENTICATED", "unknown key"))
        async with Client(stub.url, key="s3cr3t-key") as client:
            with pytest.raises(Unauthenticated) as raised:
                await client.topics.list()
            assert "s3cr3t" not in repr(client) + str(raised.value) + repr(raised.value) + repr(vars(raised.value))
        assert stub.requests[0].headers["authorization"] == "Bearer s3cr3t-key"
        assert len(stub.requests) == 1


@asynchronous
async def test_forbidden_is_not_repeated() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/topics", error(403, "PERMISSION_DENIED", "read only"))
        with pytest.raises(PermissionDenied, match="read only"):
            await client.topics.create("t")
        assert len(stub.received("/v1/topics")) == 1


@asynchronous
async def test_overloaded_is_repeated_after_retry_after() -> None:
    events = Events()
    async with Stub() as stub, Client(stub.url, on_event=events) as client:
        stub.on("POST", "/v1/produce", error(429, "RESOURCE_EXHAUSTED", headers={"Retry-After": "1"}), PRODUCED)
        started = asyncio.get_running_loop().time()
        assert (await client.produce("t", "v")).offset == 7
        assert asyncio.get_running_loop().time() - started >= 1.0
    assert [event.fields["kind"] for event in events.named("request_retried")] == ["overloaded"]


@asynchronous
async def test_call_is_not_retried_beyond_retry_for() -> None:
    async with Stub() as stub, Client(stub.url, retry_for=0.5) as client:
        stub.on("POST", "/v1/produce", error(429, "RESOURCE_EXHAUSTED", headers={"Retry-After": "9999"}))
        with pytest.raises(Overloaded) as raised:
            await client.produce("t", "v")
        assert raised.value.retry_after == 9999
        assert len(stub.received("/v1/produce")) == 1


@asynchronous
async def test_unavailable_that_did_nothing_is_repeated_also_without_a_key() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", error(503, "UNAVAILABLE", committed="no"), PRODUCED)
        assert (await client.produce("t", "v")).offset == 7


@pytest.mark.parametrize(
    "failure",
    [
        error(503, "UNAVAILABLE"),
        Reply(body={"status": "produced", "topic": "t", "partition": 0, "offset": 1}, cut_after=9),
        Reply(reset=True),
        Reply(body={}, delay=30),
    ],
    ids=["503", "answer cut", "connection lost", "slow"],
)
@asynchronous
async def test_lost_outcome_is_repeated_with_a_key_and_unknown_without(failure: Reply) -> None:
    async with Stub() as stub, Client(stub.url, timeout=0.5) as client:
        stub.on("POST", "/v1/produce", failure, PRODUCED)
        with pytest.raises(UnknownOutcome) as raised:
            await client.produce("t", "v")
        assert raised.value.kind == "unknown"
        assert not raised.value.retry_is_safe
        assert len(stub.received("/v1/produce")) == 1
        stub.on("POST", "/v1/produce", failure, PRODUCED)
        assert (await client.produce("t", "v", idempotency_key="k")).offset == 7
        assert len(stub.received("/v1/produce")) == 3


@pytest.mark.parametrize("status", [500, 507])
@asynchronous
async def test_server_error_is_not_repeated_even_with_a_key(status: int) -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", error(status, "INTERNAL"), PRODUCED)
        with pytest.raises(Exception, match=str(status)):
            await client.produce("t", "v", idempotency_key="k")
        assert len(stub.received("/v1/produce")) == 1


@asynchronous
async def test_refused_connection_is_unavailable_and_safe_to_retry() -> None:
    async with Client(refused_url(), retry_for=0.2) as client:
        with pytest.raises(Unavailable) as raised:
            await client.produce("t", "v")
    assert (raised.value.status, raised.value.retry_is_safe) == (0, True)


@asynchronous
async def test_unknown_host_is_unavailable() -> None:
    async with Client("http://no-such-host.invalid:1", retry_for=0) as client:
        with pytest.raises(Unavailable):
            await client.topics.list()


@asynchronous
async def test_other_url_is_used_where_one_does_not_answer() -> None:
    async with Stub() as stub, Client([refused_url(), stub.url]) as client:
        stub.on("POST", "/v1/produce", PRODUCED)
        for _ in range(3):
            assert (await client.produce("t", "v")).offset == 7
        assert len(stub.received("/v1/produce")) == 3


@asynchronous
async def test_other_url_is_used_after_503() -> None:
    async with Stub() as first, Stub() as second, Client([first.url, second.url]) as client:
        first.on("POST", "/v1/produce", error(503, "UNAVAILABLE", committed="no"))
        second.on("POST", "/v1/produce", PRODUCED)
        await client.produce("t", "v")
        await client.produce("t", "v")
        assert (len(first.received("/v1/produce")), len(second.received("/v1/produce"))) == (1, 2)


@asynchronous
async def test_leader_hint_moves_requests_to_one_of_the_urls_only() -> None:
    async with Stub() as first, Stub() as second, Stub() as foreign:
        hints = iter([foreign.url, second.url])
        topics = {"topics": []}
        first.on("GET", "/v1/topics", lambda request: Reply(body=topics, headers={"DriftQ-Leader": next(hints)}))
        second.on("GET", "/v1/topics", Reply(body=topics))
        async with Client([first.url, second.url]) as client:
            for _ in range(4):
                await client.topics.list()
        assert [len(stub.received("/v1/topics")) for stub in (first, second, foreign)] == [2, 2, 0]


@asynchronous
async def test_redirect_is_followed_once_and_gives_the_key_to_own_urls_only() -> None:
    async with Stub() as first, Stub() as second, Stub() as foreign:
        for target, own in ((second, True), (foreign, False)):
            first.on("POST", "/v1/produce", Reply(307, headers={"Location": f"{target.url}/v1/produce"}))
            target.on("POST", "/v1/produce", PRODUCED)
            async with Client([first.url, second.url], key="k") as client:
                await client.produce("t", "v")
            (request,) = target.received("/v1/produce")
            assert request.json == {"topic": "t", "value": "v"}
            assert ("authorization" in request.headers) is own
        foreign.on("POST", "/v1/produce", Reply(307, headers={"Location": f"{first.url}/v1/produce"}))
        async with Client(first.url, retry_for=0) as client:
            with pytest.raises(Unavailable, match="redirected"):
                await client.produce("t", "v")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Reply(body=b"<html>welcome</html>", content_type="text/html"), "<html>welcome"),
        (Reply(404, b"nothing here", content_type="text/plain"), "nothing here"),
        (
            Reply(body={**VERSION, "api": "v2", "version": "3.0.0"}),
            "http.*: this client speaks API v1, the broker 3.0.0 has API v2",
        ),
        (Reply(body=["other"]), "version of a DriftQ broker"),
        (Reply(body=b"{", content_type="application/json"), "expected JSON"),
        (Reply(301, headers={"Location": "https://elsewhere/"}), "got 301"),
    ],
    ids=["web page", "404 of another server", "other version", "other json", "no json", "redirect"],
)
@asynchronous
async def test_server_that_is_no_driftq_broker_is_a_protocol_error(answer: Reply, message: str) -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("GET", "/v1/version", answer)
        stub.on("GET", "/v1/topics", answer)
        with pytest.raises(ProtocolError, match=message):
            await client.topics.list()


@pytest.mark.parametrize(
    "answer", [Reply(body={"wrong": 1}), Reply(body=[]), Reply(body={"partition": "0", "offset": 1})]
)
@asynchronous
async def test_answer_without_its_fields_is_a_protocol_error(answer: Reply) -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", answer)
        with pytest.raises(ProtocolError):
            await client.produce("t", "v")


@asynchronous
async def test_version_is_asked_once() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("GET", "/v1/topics", Reply(body={"topics": ["a"]}))
        await asyncio.gather(*(client.topics.list() for _ in range(5)))
        assert len(stub.received("/v1/version")) == 1
        assert stub.requests[0].headers["user-agent"] == "driftq-python/0.1.0 contract/1"


@asynchronous
async def test_server_that_hangs_is_waited_for_once_by_all_requests() -> None:
    async with Stub() as slow, Stub() as other:
        slow.on("GET", "/v1/version", Reply(body=VERSION, delay=30))
        other.on("GET", "/v1/topics", Reply(body={"topics": []}))
        async with Client([slow.url, other.url], timeout=0.5) as client:
            started = asyncio.get_running_loop().time()
            await asyncio.gather(*(client.topics.list() for _ in range(20)))
            assert asyncio.get_running_loop().time() - started < 5
        assert len(slow.received("/v1/version")) == 1


@asynchronous
async def test_check_that_failed_is_made_again() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("GET", "/v1/version", error(503, "UNAVAILABLE"), Reply(body=VERSION))
        stub.on("GET", "/v1/topics", Reply(body={"topics": []}))
        await client.topics.list()
        await client.topics.list()
        assert len(stub.received("/v1/version")) == 2


@asynchronous
async def test_nothing_is_sent_before_the_first_request() -> None:
    async with Stub() as stub, Client(stub.url):
        pass
    assert stub.requests == []


@pytest.mark.parametrize(
    "urls",
    ["localhost:8080", "ftp://host", "http://", "http://user:pw@host", [], "http://h:99999", "http://h?q=1", 3, [None]],
)
def test_url_that_cannot_be_used_is_misuse(urls: Any) -> None:
    with pytest.raises(Misuse) as raised:
        Client(urls)
    assert "pw" not in raised.value.message


def test_key_that_is_no_header_and_missing_certificates_are_misuse() -> None:
    with pytest.raises(Misuse):
        Client("http://h", key="a\nb")
    with pytest.raises(Misuse, match="missing"):
        Client("https://h", ca="/missing.pem")


@asynchronous
async def test_value_that_is_no_json_is_misuse_before_anything_is_sent() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        for options in (
            {"json": float("nan")},
            {"value": 3},
            {},
            {"value": "v", "json": 1},
            {"value": "v", "labels": {"a": b"x"}},
        ):
            with pytest.raises(Misuse):
                await client.produce("t", **options)
        assert stub.requests == []


@asynchronous
async def test_refusal_names_status_and_code() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", error(400, "INVALID_ARGUMENT", "value is empty"))
        with pytest.raises(InvalidRequest) as raised:
            await client.produce("t", "")
        assert str(raised.value) == "invalid (400 INVALID_ARGUMENT): value is empty"


def test_pauses_have_full_jitter_a_bound_and_a_floor() -> None:
    longest = Backoff(draw=lambda low, high: high)
    assert [round(longest.next_pause(), 3) for _ in range(9)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    shortest = Backoff(draw=lambda low, high: low)
    assert [shortest.next_pause(), shortest.next_pause(2.0), shortest.next_pause(3600)] == [0.0, 2.0, 60.0]
    longest.reset()
    assert longest.next_pause() == 0.05


def test_failure_seen_by_two_requests_moves_on_once() -> None:
    endpoints = Endpoints(["http://a", "http://b", "http://c"])
    endpoints.failed("http://a")
    endpoints.failed("http://a")
    assert endpoints.current == "http://b"
