"""A stub broker that delivers what a test gives it, and records how each delivery was settled."""

from __future__ import annotations

import asyncio
from typing import Any

from driftq import Client, Worker
from stub import Reply, Request, Stream, Stub, error, item, line, ndjson
from support import Events

SETTLING = ("/v1/complete", "/v1/nack", "/v1/release", "/v1/ack", "/v1/idempotency/finish")
EXECUTE = {
    "decision": "EXECUTE", "attempt": 1, "lease_token": "f" * 24, "lease_until": "2026-11-15T07:54:20.618Z",
    "status": "IN_PROGRESS", "status_v1": "PENDING", "idempotent": True,
}  # fmt: skip


def replay(status: str, result: Any = None, last_error: str = "") -> dict[str, Any]:
    return {
        "decision": "REPLAY", "status": status, "status_v1": "COMMITTED", "response_code": 0, "result": result,
        "last_error": last_error,
    }  # fmt: skip


IN_PROGRESS = error(409, "FAILED_PRECONDITION", "in progress", decision="IN_PROGRESS", retry_after_ms=100)
STALE = error(409, "FAILED_PRECONDITION", "stale lease")


def keyed(offset: int = 0, key: str = "order-1", **envelope: Any) -> dict[str, Any]:
    return item(offset, envelope={"idempotency_key": key, **envelope})


class WorkerStub(Stub):
    """Everything succeeds unless a test says otherwise."""

    def __init__(self, *items: dict[str, Any]) -> None:
        super().__init__()
        self.settled = asyncio.Event()
        self.on("GET", "/v1/consume", Stream([b"".join(line(fields) for fields in items) or b"\n"], hold=True))
        self.on("POST", "/v1/idempotency/begin", each(EXECUTE))
        self.on("POST", "/v1/complete", each({"produced": []}))
        for path in ("/v1/nack", "/v1/release", "/v1/ack"):
            self.on("POST", path, Reply(204))
        self.on("POST", "/v1/idempotency/finish", Reply(body={"ok": True}))
        for path in ("/v1/extend", "/v1/idempotency/renew"):
            self.on("POST", path, Reply(body={"lease_until": "2026-11-15T07:54:20.618Z"}))

    def settling(self) -> list[tuple[str, dict[str, Any]]]:
        """The requests that ended deliveries, without what names the delivery."""
        named = {"topic", "group", "partition", "offset", "owner", "scope", "key"}
        found = []
        for request in self.requests:
            if request.path in SETTLING:
                for fields in request.lines:
                    rest = {name: value for name, value in fields.items() if name not in named}
                    found.append((request.path.removeprefix("/v1/"), rest))
        return found


def each(fields: dict[str, Any]) -> Any:
    """Answers a request, and each line of a batch, with the same fields."""

    def answer(request: Request) -> Reply:
        if request.headers["content-type"] != "application/x-ndjson":
            return Reply(body=fields)
        rest = {**fields, "effect_status": fields.get("status", ""), "status": 200}
        return ndjson(*(rest for _ in request.lines))

    return answer


async def run_until(stub: Stub, handler: Any, event: str, count: int = 1, **options: Any) -> Events:
    """Runs a worker until it has reported an event so often, then stops it."""
    events = Events()
    async with Client(stub.url, retry_for=options.pop("retry_for", 5.0)) as client:
        worker = Worker(client, "t", "g", handler, on_event=events, owner="w", stop_on=(), **options)
        running = asyncio.create_task(worker.run())
        waiting = asyncio.create_task(events.wait_for(event, count))
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        worker.stop()
        await running
    return events
