"""What a user sees of each bad input and fault: the texts of docs/clients-faults.md, all of which are met here."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driftq import Client, Context, DriftqError, Message
from driftq.events import Reporter
from driftq.stream import StreamOptions, messages
from stub import Reply, Stream, Stub, error, item, line
from support import Events, asynchronous, needs_openssl, server_side
from worker_stub import STALE, WorkerStub, keyed, run_until

PAGE = Path(__file__).parents[3] / "docs" / "clients-faults.md"
LEASE = 0.3
HTML = Reply(404, b"<html>Welcome</html>", content_type="text/html")


def documented() -> dict[str, str]:
    """The text that the page has for Python, by the title of its section."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    rows = (
        (section.split("\n")[0], re.search(r"^\| Python \| `(.+?)` \|", section, re.MULTILINE)) for section in sections
    )
    return {title: row[1] for title, row in rows if row is not None}


TEXTS = documented()


def assert_shown(title: str, text: str) -> None:
    """Whether a text is the one of the page, in which … stands for anything."""
    pattern = ".*".join(re.escape(part) for part in TEXTS[title].split("…"))
    assert re.fullmatch(pattern, text, re.DOTALL), f"{text!r} is not what the page says: {TEXTS[title]!r}"


async def shown(url: str, **options: Any) -> str:
    """The error of a call."""
    with pytest.raises(DriftqError) as raised:
        async with Client(url, **{"retry_for": 0.1, **options}) as client:
            await client.topics.list()
    return str(raised.value)


@asynchronous
async def test_wrong_key() -> None:
    async with Stub() as stub:
        stub.on("GET", "/v1/version", error(401, "UNAUTHENTICATED", "the key is not known"))
        assert_shown("Wrong key", await shown(stub.url, key="wrong"))


@needs_openssl
@asynchronous
async def test_certificate_that_is_not_trusted(certificate: tuple[Path, Path]) -> None:
    async with Stub(server_side(certificate)) as stub:
        assert_shown("Certificate that is not trusted", await shown(stub.url))


@asynchronous
async def test_https_to_a_server_without_tls() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert_shown("https to a server without TLS", await shown(f"https://127.0.0.1:{port}"))


@asynchronous
async def test_url_without_scheme() -> None:
    assert_shown("URL without scheme", await shown("localhost:8080"))


@asynchronous
async def test_url_at_which_nothing_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert_shown("URL at which nothing listens", await shown(f"http://127.0.0.1:{port}"))


@asynchronous
async def test_url_of_another_server() -> None:
    async with Stub() as stub:
        stub.on("GET", "/v1/version", HTML)
        assert_shown("URL of another server", await shown(stub.url))


@asynchronous
async def test_server_that_speaks_no_http() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert_shown("Server that speaks no HTTP", await shown(f"http://127.0.0.1:{port}"))


@asynchronous
async def test_server_of_another_version() -> None:
    async with Stub() as stub:
        stub.on("GET", "/v1/version", Reply(body={"version": "9.1.0", "api": "v2"}))
        assert_shown("Server of another version", await shown(stub.url))


@asynchronous
async def test_overloaded_for_longer_than_retry_for() -> None:
    async with Stub() as stub:
        full = "the broker has too many messages"
        stub.on("GET", "/v1/topics", error(429, "RESOURCE_EXHAUSTED", full, reason="overloaded", retry_after_ms=700))
        assert_shown("429 for longer than `retry_for`", await shown(stub.url))


@asynchronous
async def test_unavailable_for_longer_than_retry_for() -> None:
    async with Stub() as stub:
        stub.on("GET", "/v1/topics", error(503, "UNAVAILABLE", "the log is recovering", committed="no"))
        assert_shown("503 that says it did nothing", await shown(stub.url))


@asynchronous
async def test_unavailable_that_may_have_done_it() -> None:
    async with Stub() as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/produce", error(503, "UNAVAILABLE", "the log has failed"))
        with pytest.raises(DriftqError) as raised:
            await client.produce("t", "v")
    assert_shown("503 that may have done it", str(raised.value))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="driftq"):
        yield caplog


def assert_logged(title: str, log: pytest.LogCaptureFixture, event: str) -> None:
    """Whether the log has one line of an event, with the text of the page and the fields as data."""
    records = [record for record in log.records if record.__dict__["driftq"]["event"] == event]
    assert records, log.text
    assert_shown(title, f"{records[0].levelname} {records[0].getMessage()}")


@asynchronous
async def test_stream_cut_in_a_line(log: pytest.LogCaptureFixture) -> None:
    async with Stub() as stub, Client(stub.url) as client:
        cut = Stream([line(item(1)) + line(item(2))[:40]], cut=True)
        stub.on("GET", "/v1/consume", cut, Stream([line(item(2))], hold=True))
        stream = messages(client.connection, StreamOptions(topic="t", group="g", owner="o"), Reporter(Events()))
        assert [(await anext(stream)).offset for _ in range(2)] == [1, 2]
        await stream.aclose()
    assert_logged("Stream cut in the middle of a line", log, "disconnected")


async def last_error(handler: Any) -> str:
    """The text that the broker is given for a message whose handler fails."""
    async with WorkerStub(keyed()) as stub:
        await run_until(stub, handler, "failed")
        return str(stub.settling()[0][1]["last_error"])


@asynchronous
async def test_handler_that_raises() -> None:
    async def handle(message: Message, context: Context) -> None:
        raise KeyError("pizza")

    assert_shown("Handler that panics or raises", await last_error(handle))


@asynchronous
async def test_handler_that_returns_no_json() -> None:
    async def handle(message: Message, context: Context) -> Any:
        return {"prices": [1.5, float("nan")]}

    assert_shown("Handler that returns no JSON", await last_error(handle))


@asynchronous
async def test_handler_that_blocks_the_loop(log: pytest.LogCaptureFixture) -> None:
    async def handle(message: Message, context: Context) -> None:
        time.sleep(2 * LEASE)  # noqa: ASYNC251 - to block the loop is the purpose

    async with WorkerStub(keyed()) as stub:
        await run_until(stub, handle, "lease_lost", lease=LEASE)
    assert_logged("Handler that blocks the event loop", log, "loop_blocked")


@asynchronous
async def test_handler_that_ignores_its_cancellation(log: pytest.LogCaptureFixture) -> None:
    events, release = Events(), asyncio.Event()

    async def handle(message: Message, context: Context) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/extend", STALE)

        async def end_when_stuck() -> None:
            await events.wait_for("handler_stuck")
            release.set()

        async with Client(stub.url) as client:
            worker = client.worker("t", "g", handle, on_event=events, stop_on=(), lease=LEASE)
            running = asyncio.create_task(worker.run())
            await end_when_stuck()
            worker.stop()
            await running
    assert_logged("Handler that ignores its cancellation", log, "handler_stuck")


def test_page_has_no_text_that_is_not_met_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    met = set(re.findall(r'assert_(?:shown|logged)\(\s*"([^"]+)"', source))
    assert met == set(TEXTS)


def test_tests_that_the_page_names_exist() -> None:
    for file, name in re.findall(r"`clients/(\S+?)::(\w+)`", PAGE.read_text(encoding="utf-8")):
        source = (PAGE.parents[1] / "clients" / file).read_text(encoding="utf-8")
        assert re.search(rf'(?:fn |def |test\("){name}\b', source), f"{file} has no test {name}"


def test_log_has_fields_as_data_and_neither_keys_nor_payloads(log: pytest.LogCaptureFixture) -> None:
    Reporter(None, topic="t").report("failed", kind="retry", error="100 %s\nof it")
    (record,) = log.records
    assert record.getMessage() == "an attempt has failed topic='t' kind='retry' error='100 %s\\nof it'"
    assert json.dumps(record.__dict__["driftq"])
