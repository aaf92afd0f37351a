"""Spans of handler runs. Without a tracer there are none; OpenTelemetry is optional."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from driftq.messages import Message

SPAN_NAME = "driftq.handle"


class Tracer(Protocol):
    """Opens a span for the time of one handler run, in the context in which the handler runs.

    An exception of the handler passes through the context manager, which may record it.
    """

    def span(self, name: str, *, traceparent: str | None, attributes: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """A context manager that is the span. `traceparent` names its parent."""
        ...


def attributes_of(message: Message) -> dict[str, Any]:
    """The attributes of the span of a message."""
    return {
        "messaging.system": "driftq",
        "messaging.destination.name": message.topic,
        "messaging.message.id": message.id,
        "driftq.attempt": message.attempts,
    }


class OpenTelemetryTracer:
    """A `Tracer` over the API of OpenTelemetry (`pip install driftq[tracing]`)."""

    def __init__(self, name: str = "driftq") -> None:
        from opentelemetry import trace

        self._tracer = trace.get_tracer(name)

    @contextmanager
    def span(self, name: str, *, traceparent: str | None, attributes: Mapping[str, Any]) -> Iterator[Any]:
        """As `Tracer.span`; the span is the current one while the handler runs."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {"traceparent": traceparent} if traceparent else {}
        parent = TraceContextTextMapPropagator().extract(carrier)
        with self._tracer.start_as_current_span(
            name, context=parent, kind=trace.SpanKind.CONSUMER, attributes=dict(attributes)
        ) as span:
            yield span
