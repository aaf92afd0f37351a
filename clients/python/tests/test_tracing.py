from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from driftq import Context, Message, OpenTelemetryTracer
from stub import item
from support import asynchronous
from worker_stub import WorkerStub, run_until

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

current: ContextVar[str] = ContextVar("current", default="none")


class Spans:
    """A tracer that keeps what it is told."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, str | None, dict[str, Any]]] = []
        self.errors: list[str] = []

    @contextmanager
    def span(self, name: str, *, traceparent: str | None, attributes: Mapping[str, Any]) -> Iterator[None]:
        self.opened.append((name, traceparent, dict(attributes)))
        token = current.set("a span")
        try:
            yield
        except BaseException as error:
            self.errors.append(type(error).__name__)
            raise
        finally:
            current.reset(token)


@asynchronous
async def test_handler_runs_in_a_span_whose_parent_is_that_of_the_message() -> None:
    seen = []

    async def handle(message: Message, context: Context) -> None:
        seen.append(current.get())
        raise ValueError("x")

    spans = Spans()
    async with WorkerStub(item(3, partition=1, trace=TRACE, attempts=2)) as stub:
        await run_until(stub, handle, "failed", tracer=spans)
    attributes = {
        "messaging.system": "driftq",
        "messaging.destination.name": "t",
        "messaging.message.id": "t/1/3",
        "driftq.attempt": 2,
    }
    assert spans.opened == [("driftq.handle", TRACE, attributes)]
    assert (seen, spans.errors) == (["a span"], ["ValueError"])


@asynchronous
async def test_span_is_current_in_the_thread_of_a_plain_function() -> None:
    seen = []

    def handle(message: Message, context: Context) -> None:
        seen.append(current.get())

    async with WorkerStub(item()) as stub:
        await run_until(stub, handle, "completed", tracer=Spans())
    assert seen == ["a span"]


@asynchronous
async def test_open_telemetry_gets_the_parent_of_the_message() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    parents = []

    async def handle(message: Message, context: Context) -> None:
        parents.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")

    async with WorkerStub(item(trace=TRACE)) as stub:
        await run_until(stub, handle, "completed", tracer=OpenTelemetryTracer())
    assert parents == [TRACE.split("-")[1]]
