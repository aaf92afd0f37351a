"""Client of DriftQ, a durable message broker: workers whose effects happen once.

`Client` makes every request of the broker, `Worker` handles the messages of a group, `Producer` batches. The README
has a worker in ten lines.
"""

from driftq import scopes
from driftq.broker_store import BrokerStore
from driftq.canonical import canonical_json, idempotency_key, request_hash
from driftq.client import Client
from driftq.context import Context
from driftq.errors import (
    Conflict,
    DriftqError,
    InProgress,
    InvalidRequest,
    Misuse,
    NotFound,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    StaleLease,
    StorageFull,
    TlsError,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)
from driftq.events import Event
from driftq.messages import DeadLetter, Envelope, Message, Output, Produced, RetryPolicy, Routing
from driftq.outcomes import Outputs, Permanent, Retry
from driftq.producer import Producer
from driftq.scopes import Delivery, Identity, Scope
from driftq.store import Effect, Execute, InProgressElsewhere, Replay, Retryable, Store
from driftq.tracing import OpenTelemetryTracer, Tracer
from driftq.transport import VERSION as __version__
from driftq.worker import Worker

__all__ = [
    "BrokerStore",
    "Client",
    "Conflict",
    "Context",
    "DeadLetter",
    "Delivery",
    "DriftqError",
    "Effect",
    "Envelope",
    "Event",
    "Execute",
    "Identity",
    "InProgress",
    "InProgressElsewhere",
    "InvalidRequest",
    "Message",
    "Misuse",
    "NotFound",
    "OpenTelemetryTracer",
    "Output",
    "Outputs",
    "Overloaded",
    "Permanent",
    "PermissionDenied",
    "Produced",
    "Producer",
    "ProtocolError",
    "Replay",
    "Retry",
    "RetryPolicy",
    "Retryable",
    "Routing",
    "Scope",
    "StaleLease",
    "StorageFull",
    "Store",
    "TlsError",
    "Tracer",
    "Unauthenticated",
    "Unavailable",
    "UnknownOutcome",
    "Worker",
    "__version__",
    "canonical_json",
    "idempotency_key",
    "request_hash",
    "scopes",
]
