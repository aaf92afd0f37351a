from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from driftq import Client, Message, NotFound, ProtocolError
from driftq.events import Reporter
from driftq.stream import StreamOptions, _lines, messages
from stub import Reply, Stream, Stub, error, item, line
from support import Events, asynchronous

OPTIONS = StreamOptions(topic="t", group="g", owner="o")


async def take(client: Client, count: int, events: Events, silence: float = 45.0) -> list[Message]:
    taken: list[Message] = []
    async with aclosing(messages(client.connection, OPTIONS, Reporter(events), silence=silence)) as stream:
        async for message in stream:
            taken.append(message)
            if len(taken) == count:
                break
    return taken


@asynchronous
async def test_message_is_read_whole_however_it_is_split() -> None:
    text = line(item(3, value="één", envelope={"idempotency_key": "k", "labels": {"a": "b"}}, trace="00-1-2-01"))
    chunks = [b"\n", *(text[n : n + 7] for n in range(0, len(text), 7)), b"\n", line(item(4)) + line(item(5))]
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("GET", "/v1/consume", Stream(chunks, hold=True))
        first, *rest = await take(client, 3, Events())
        assert (first.offset, first.text, first.idempotency_key) == (3, "één", "k")
        assert (first.envelope.labels, first.trace, first.id) == ({"a": "b"}, "00-1-2-01", "t/0/3")
        assert [message.offset for message in rest] == [4, 5]
        assert stub.requests[-1].query == {"topic": "t", "group": "g", "owner": "o"}


@asynchronous
async def test_stream_cut_in_a_line_drops_it_and_reconnects() -> None:
    events = Events()
    async with Stub() as stub, Client(stub.url) as client:
        cut = Stream([line(item(1)) + line(item(2))[:40]], cut=True)
        stub.on("GET", "/v1/consume", cut, Stream([line(item(2))], hold=True))
        assert [message.offset for message in await take(client, 2, events)] == [1, 2]
    assert [event.event for event in events.all if event.event != "received"] == [
        "connected",
        "disconnected",
        "connected",
    ]


@pytest.mark.parametrize(
    "bad", [b'{"partition":\n', b"[]\n", b'{"partition":0}\n', line(item(0, partition=-0) | {"offset": "1"}), b"\xff\n"]
)
@asynchronous
async def test_line_that_is_no_message_is_a_protocol_event_and_reconnects(bad: bytes) -> None:
    events = Events()
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("GET", "/v1/consume", Stream([bad], hold=True), Stream([line(item(9))], hold=True))
        assert [message.offset for message in await take(client, 1, events)] == [9]
    assert len(events.named("protocol")) == 1


@asynchronous
async def test_silent_stream_counts_as_cut_and_blank_lines_keep_it() -> None:
    events = Events()
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("GET", "/v1/consume", Stream([b"\n"], hold=True), Stream([line(item(1))], hold=True))
        assert [message.offset for message in await take(client, 1, events, silence=0.2)] == [1]
    (disconnected,) = events.named("disconnected")
    assert "in time" in disconnected.fields["error"]


@asynchronous
async def test_stream_that_ends_or_is_refused_for_now_is_opened_again() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        refusals = [error(429, "RESOURCE_EXHAUSTED"), error(503, "UNAVAILABLE"), Stream([]), Reply(reset=True)]
        stub.on("GET", "/v1/consume", *refusals, Stream([line(item(1))], hold=True))
        assert [message.offset for message in await take(client, 1, Events())] == [1]


@asynchronous
async def test_unknown_topic_ends_the_stream() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("GET", "/v1/consume", error(404, "NOT_FOUND", "topic does not exist"))
        with pytest.raises(NotFound):
            await take(client, 1, Events())


@asynchronous
async def test_answer_that_is_no_stream_is_a_protocol_error() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("GET", "/v1/consume", Reply(body=b"<html>", content_type="text/html"))
        with pytest.raises(ProtocolError, match="html"):
            await take(client, 1, Events())


@asynchronous
async def test_stream_fails_over_to_another_url() -> None:
    async with Stub() as first, Stub() as second, Client([first.url, second.url]) as client:
        first.on("GET", "/v1/consume", Stream([line(item(1))[:20]], cut=True))
        second.on("GET", "/v1/consume", Stream([line(item(2))], hold=True))
        assert [message.offset for message in await take(client, 1, Events())] == [2]


@asynchronous
async def test_binary_and_lost_payloads_are_told_apart() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        binary = {**item(1), "value_base64": "/wA="}
        del binary["value"]
        lost = {**item(2, lost=True)}
        del lost["value"]
        stub.on("GET", "/v1/consume", Stream([line(binary) + line(lost)], hold=True))
        first, second = await take(client, 2, Events())
        assert (first.value, first.lost) == (b"\xff\x00", False)
        assert (second.value, second.lost) == (b"", True)


class Chunks:
    """Stands for an answer whose body comes in these chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self.content = self
        self._chunks = chunks

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


@asynchronous
async def test_lines_do_not_depend_on_where_the_chunks_end() -> None:
    whole = b"one\n\ntwo\nthree\ncut"
    for first in range(len(whole) + 1):
        for second in range(first, len(whole) + 1):
            answer = Chunks(whole[:first], whole[first:second], whole[second:])
            assert [text async for text in _lines(answer)] == [b"one", b"two", b"three"]  # type: ignore[arg-type]
