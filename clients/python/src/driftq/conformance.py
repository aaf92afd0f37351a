"""The adapter of the conformance protocol: `python -m driftq.conformance`.

Reads one JSON object per line from standard input, does what it asks with this client, and answers in the same way on
standard output. It judges nothing itself.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import aiohttp

from driftq import scopes
from driftq.canonical import idempotency_key, request_hash
from driftq.client import Client
from driftq.connection import decoded
from driftq.context import Context
from driftq.errors import DriftqError, Misuse
from driftq.events import Event
from driftq.messages import Message, Output, Produced
from driftq.outcomes import Outputs, Permanent, Retry
from driftq.scopes import Delivery, Identity, Scope
from driftq.transport import CONTRACT
from driftq.worker import Worker

Fields = dict[str, Any]


class Steps:
    """A handler made of the steps of a scenario."""

    def __init__(self, steps: list[Fields], *, worker: str, ledger: str, http: aiohttp.ClientSession) -> None:
        self._steps = steps
        self._worker = worker
        self._ledger = ledger
        self._http = http

    async def __call__(self, message: Message, context: Context) -> Any:
        """Does the steps for one message."""
        result: Any = {"done": message.idempotency_key or message.id}
        outputs: list[Output] = []
        for step in self._steps:
            step = _filled(step, message)
            match step["do"]:
                case "effect":
                    await self._effect(step["name"], message)
                case "side_effect":
                    effect = self._effect_of(step["name"], message, after=step.get("ms", 0) / 1000)
                    await context.side_effect(step["name"], step.get("args"), effect)
                case "sleep":
                    await asyncio.sleep(step["ms"] / 1000)
                case "block":
                    time.sleep(step["ms"] / 1000)  # noqa: ASYNC251 - to block the loop is the purpose
                case "stubborn":
                    await _stubborn(step["ms"] / 1000)
                case "fail":
                    _fail(step, message)
                case "not_json":
                    return float("nan")
                case "return":
                    result = step.get("value")
                case "outputs":
                    outputs = [_output(fields) for fields in step["messages"]]
                case "exit":
                    os._exit(70)
                case other:
                    raise Permanent(f"unknown step {other!r}")
        return Outputs(*outputs, result=result) if outputs else result

    def _effect_of(self, name: str, message: Message, *, after: float) -> Callable[[], Awaitable[Any]]:
        async def run() -> Any:
            await asyncio.sleep(after)
            return await self._effect(name, message)

        return run

    async def _effect(self, name: str, message: Message) -> Fields:
        body = {"name": name, "message": message.id, "attempt": message.attempts, "worker": self._worker}
        async with self._http.post(f"{self._ledger.rstrip('/')}/effect", json=body) as response:
            if response.status >= 300:
                raise Retry(f"the ledger answered {response.status}")
        return {"effect": name}


def _filled(value: Any, message: Message) -> Any:
    if isinstance(value, str):
        key = message.idempotency_key or message.id
        texts = {"{message}": message.id, "{key}": key, "{attempt}": str(message.attempts)}
        for name, text in texts.items():
            value = value.replace(name, text)
        return value
    if isinstance(value, list):
        return [_filled(item, message) for item in value]
    if isinstance(value, dict):
        return {name: _filled(item, message) for name, item in value.items()}
    return value


async def _stubborn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(end - time.monotonic())
        except asyncio.CancelledError:
            continue


def _fail(step: Fields, message: Message) -> None:
    if message.attempts > step.get("attempts", message.attempts):
        return
    text = step.get("text", "failed")
    match step["kind"]:
        case "retry":
            delay = step.get("delay_ms")
            raise Retry(text, None if delay is None else delay / 1000)
        case "permanent":
            raise Permanent(text)
        case _:
            raise RuntimeError(text)


def _output(fields: Fields) -> Output:
    fields = {name: value for name, value in fields.items() if value is not None}
    if "value_base64" in fields:
        fields["value"] = base64.b64decode(fields.pop("value_base64"))
    if "delay_ms" in fields:
        fields["delay"] = fields.pop("delay_ms") / 1000
    known = set(Output.__dataclass_fields__)
    unknown = fields.keys() - known
    if unknown:
        raise Misuse(f"unknown fields of a message: {', '.join(sorted(unknown))}")
    return Output(**fields)


def _scope(value: Any) -> Any:
    if value is None or value in ("consume", "none"):
        return value or "consume"
    if isinstance(value, str):
        return Scope(value)
    return scopes.scope_of(value)


class Adapter:
    """The operations of the protocol."""

    def __init__(self, write: Callable[[Fields], None]) -> None:
        self._write = write
        self._client: Client | None = None
        self._http: aiohttp.ClientSession | None = None
        self._workers: dict[str, tuple[Worker, asyncio.Task[None]]] = {}
        self._events: dict[str, list[Fields]] = {}
        self._counts: dict[str, dict[str, int]] = {}

    async def answer(self, request: Fields) -> None:
        """Does one operation and writes its answer."""
        try:
            operation = getattr(self, f"_op_{request.get('op')}", None)
            if operation is None:
                raise Misuse(f"unknown operation {request.get('op')!r}")
            fields = {name: value for name, value in request.items() if name not in ("id", "op") and value is not None}
            self._write({"id": request["id"], "ok": await operation(**fields)})
        except DriftqError as error:
            self._write({"id": request["id"], "error": error.as_json()})
        except Exception as error:
            misuse = Misuse(f"{type(error).__name__}: {error}")
            self._write({"id": request["id"], "error": misuse.as_json()})

    async def close(self) -> None:
        """Stops all workers as at SIGTERM."""
        for worker, _ in self._workers.values():
            worker.stop()
        await asyncio.gather(*(task for _, task in self._workers.values()), return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        if self._http is not None:
            await self._http.close()

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise Misuse("connect first")
        return self._client

    async def _op_connect(
        self,
        urls: list[str],
        key: str | None = None,
        timeout_ms: int = 30_000,
        retry_for_ms: int = 60_000,
        ca: str | None = None,
    ) -> Fields:
        if self._client is not None:
            await self._client.close()
        self._client = Client(urls, key=key, timeout=timeout_ms / 1000, retry_for=retry_for_ms / 1000, ca=ca)
        return {}

    async def _op_create_topic(self, topic: str, partitions: int | None = None) -> Fields:
        settings = await self._connected.topics.create(topic, partitions=partitions)
        return {"partitions": settings.partitions}

    async def _op_produce(self, **fields: Any) -> Fields:
        output = _output(fields)
        names = set(Output.__dataclass_fields__) - {"topic", "value", "json"}
        options = {name: getattr(output, name) for name in names}
        return _produced(await self._connected.produce(output.topic, output.value, **options))

    async def _op_produce_many(self, topic: str, messages: list[Fields]) -> Fields:
        async def one(fields: Fields) -> Fields:
            try:
                return {"ok": _produced(await producer.send(_output({"topic": topic, **fields})))}
            except DriftqError as error:
                return {"error": error.as_json()}

        async with self._connected.producer() as producer:
            return {"results": await asyncio.gather(*(one(fields) for fields in messages))}

    async def _op_idempotency_key(self, parts: list[Any]) -> str:
        return idempotency_key(*parts)

    async def _op_request_hash(self, value_json: str) -> str:
        try:
            value = json.loads(value_json)
        except (ValueError, RecursionError) as error:
            raise Misuse(f"value_json is no JSON: {error}") from error
        return request_hash(value)

    async def _op_effect(self, identity: Fields, action: str, **fields: Any) -> Any:
        return await _effect(self._connected, identity, action, fields)

    async def _op_worker_start(
        self,
        worker: str,
        topic: str,
        group: str,
        handler: list[Fields],
        ledger: str = "",
        concurrency: int = 16,
        lease_ms: int = 30_000,
        scope: Any = None,
        per_key_order: bool = False,
        grace_ms: int = 10_000,
    ) -> Fields:
        if worker in self._workers:
            raise Misuse(f"the worker {worker!r} runs already")
        if self._http is None:
            self._http = aiohttp.ClientSession()
        events = self._events[worker] = []
        counts = self._counts[worker] = {"completed": 0, "failed": 0, "lost": 0}
        connected = asyncio.Event()

        def record(event: Event) -> None:
            events.append(event.as_json())
            name = "lost" if event.event == "lease_lost" else event.event
            if name in counts:
                counts[name] += 1
            if event.event == "connected":
                connected.set()

        started = self._connected.worker(
            topic,
            group,
            Steps(handler, worker=worker, ledger=ledger, http=self._http),
            concurrency=concurrency,
            lease=lease_ms / 1000,
            scope=_scope(scope),
            per_key_order=per_key_order,
            grace=grace_ms / 1000,
            on_event=record,
            stop_on=(),
        )
        task = asyncio.create_task(started.run())
        waiting = asyncio.create_task(connected.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            await task
        self._workers[worker] = (started, task)
        return {}

    async def _op_worker_stop(self, worker: str, grace_ms: int | None = None) -> Fields:
        if worker not in self._workers:
            raise Misuse(f"there is no worker {worker!r}")
        running, task = self._workers.pop(worker)
        running.stop(None if grace_ms is None else grace_ms / 1000)
        await task
        return dict(self._counts[worker])

    async def _op_worker_events(self, worker: str) -> Fields:
        events = self._events.get(worker)
        if events is None:
            raise Misuse(f"there is no worker {worker!r}")
        taken = list(events)
        events.clear()
        return {"events": taken}


def _produced(produced: Produced) -> Fields:
    return {
        "partition": produced.partition,
        "offset": produced.offset,
        "duplicate": produced.duplicate,
        "already_done": produced.already_done,
    }


async def _effect(client: Client, identity: Fields, action: str, fields: Fields) -> Any:
    """Asks for an effect, and returns the broker's answer as it is."""
    named = Identity(scopes.scope_of(identity["scope"]), identity["key"], identity.get("tenant_id", ""))
    if action in ("get", "forget"):
        method = "GET" if action == "get" else "DELETE"
        path = "/v1/idempotency?" + urlencode(named.as_query())
        answer = await client.connection.request(method, path, repeatable=True)
        return decoded(answer) or {}
    if action not in ("begin", "finish", "reacquire", "renew"):
        raise Misuse(f"unknown action {action!r}")
    if "delivery" in fields:
        fields["delivery"] = Delivery(**fields["delivery"]).as_json()
    return await client.connection.request_json(
        "POST",
        f"/v1/idempotency/{action}",
        json_body={**named.as_json(), **fields},
        repeatable=action != "reacquire",
    )


async def main() -> None:
    """Serves requests until standard input ends or a signal comes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def write(answer: Fields) -> None:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    adapter = Adapter(write)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, reader.feed_eof)
    write({"adapter": "python", "contract": CONTRACT})
    answering: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        try:
            request = json.loads(line)
        except ValueError:
            write({"notice": "a line that is no JSON was ignored"})
            continue
        if not isinstance(request, dict) or "id" not in request:
            write({"notice": "a line without id was ignored"})
            continue
        task = asyncio.create_task(adapter.answer(request))
        answering.add(task)
        task.add_done_callback(answering.discard)
        if request.get("op") == "connect":
            # What follows uses the client that it makes.
            await task
    await adapter.close()


if __name__ == "__main__":
    asyncio.run(main())
