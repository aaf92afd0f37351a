"""A server that answers as it is told, and misbehaves on purpose."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

VERSION = {"version": "0.1.0", "commit": "unknown", "wal_enabled": True}


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines() if line]


@dataclass
class Reply:
    """An answer. `cut_after`: so many bytes of its body are sent, then the connection is closed."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json; charset=utf-8"
    cut_after: int | None = None
    delay: float = 0.0
    reset: bool = False


@dataclass
class Stream:
    """A stream of chunks. `hold`: it stays open after them; else it ends, or is cut in the middle of a chunk."""

    chunks: list[bytes]
    hold: bool = False
    cut: bool = False
    opened: asyncio.Event = field(default_factory=asyncio.Event)


def ndjson(*lines: Any) -> Reply:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return Reply(body=body, content_type="application/x-ndjson; charset=utf-8")


def error(status: int, code: str, message: str = "no", headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    return Reply(status, {"error": code, "message": message, **fields}, headers or {})


Answer = Reply | Stream | Callable[[Request], Any]


class Stub:
    """`async with Stub() as stub`: a server on a free port. The last answer to a path is repeated."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._answers: dict[tuple[str, str], deque[Answer]] = defaultdict(deque)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests: list[Request] = []
        self.on("GET", "/v1/version", Reply(body=VERSION))

    def on(self, method: str, path: str, *answers: Answer) -> None:
        self._answers[method, path] = deque(answers)

    def received(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"

    async def __aenter__(self) -> Stub:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        url = urlsplit(target)
        request = Request(method, url.path, dict(parse_qsl(url.query, keep_blank_values=True)), headers, body)
        self.requests.append(request)
        answers = self._answers.get((method, url.path))
        answer: Any = error(404, "NOT_FOUND", "no such route") if not answers else answers[0]
        if answers and len(answers) > 1:
            answers.popleft()
        while callable(answer):
            answer = answer(request)
            if asyncio.iscoroutine(answer):
                answer = await answer
        if isinstance(answer, Stream):
            await self._stream(answer, writer)
            return False
        return await self._reply(answer, writer)

    async def _reply(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.reset:
            writer.transport.abort()
            return False
        body = reply.body if isinstance(reply.body, bytes) else b"" if reply.body is None else _encoded(reply.body)
        lines = [f"HTTP/1.1 {reply.status} Stub", f"Content-Length: {len(body)}"]
        if body:
            lines.append(f"Content-Type: {reply.content_type}")
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body[: reply.cut_after])
        await writer.drain()
        return reply.cut_after is None

    async def _stream(self, stream: Stream, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
        for chunk in stream.chunks:
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()
        stream.opened.set()
        if stream.hold:
            await asyncio.Event().wait()
        if not stream.cut:
            writer.write(b"0\r\n\r\n")
            await writer.drain()


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def item(
    offset: int = 0, *, partition: int = 0, token: int | None = None, value: str = "v", **fields: Any
) -> dict[str, Any]:
    """A delivery as the broker writes it."""
    return {
        "partition": partition,
        "offset": offset,
        "attempts": 1,
        "key": "",
        "value": value,
        "last_error": "",
        "lease_token": f"{offset + 1 if token is None else token:024x}",
        "lease_until": "2026-11-15T07:54:20.618Z",
        "failures": 0,
        "produced_at": "2026-11-15T07:54:18.599Z",
        **fields,
    }


def line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"
