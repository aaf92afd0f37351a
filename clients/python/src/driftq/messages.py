"""Messages as the client takes and gives them, and their form in JSON."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from json import loads
from typing import Any

from driftq.canonical import canonical_json
from driftq.errors import Misuse, ProtocolError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When failed deliveries are repeated; 0 attempts is no limit."""

    max_attempts: int | None = None
    backoff_ms: int | None = None
    max_backoff_ms: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that are set."""
        return _present(max_attempts=self.max_attempts, backoff_ms=self.backoff_ms, max_backoff_ms=self.max_backoff_ms)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Where a dead letter came from and why."""

    original_topic: str
    original_partition: int
    original_offset: int
    group: str
    attempts: int
    last_error: str
    reason: str
    routed_at: str
    first_offset: int
    redrives: int
    lost: bool = False
    damage: str | None = None
    deadline: str | None = None
    retry_policy: RetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """Metadata of a message that was received: what its producer or a router set."""

    run_id: str | None = None
    step_id: str | None = None
    parent_step_id: str | None = None
    tenant_id: str | None = None
    idempotency_key: str | None = None
    target_topic: str | None = None
    partition_override: int | None = None
    deadline: str | None = None
    retry_policy: RetryPolicy | None = None
    priority: int | None = None
    deliver_at: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    dlq: DeadLetter | None = None


@dataclass(frozen=True, slots=True)
class Routing:
    """A router's decision."""

    label: str
    meta: Mapping[str, str] = field(default_factory=dict)


NO_ENVELOPE = Envelope()
ABSENT: Any = object()
"""Stands for a JSON value that was not given, which `None` is not."""


@dataclass(frozen=True, slots=True)
class Message:
    """A delivery, or with `lease_token` empty a message that was peeked at."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes
    attempts: int = 0
    failures: int = 0
    last_error: str = ""
    lease_token: str = ""
    lease_until: str = ""
    produced_at: str = ""
    envelope: Envelope = NO_ENVELOPE
    routing: Routing | None = None
    trace: str | None = None
    lost: bool = False
    redrives: int = 0

    @property
    def text(self) -> str:
        """The payload as text. Raises `UnicodeDecodeError` where it is not UTF-8."""
        return self.value.decode("utf-8")

    def json(self) -> Any:
        """The payload as a JSON value. Raises `ValueError` where it is none."""
        return loads(self.value)

    @property
    def idempotency_key(self) -> str:
        """The message's idempotency key, empty where it has none."""
        return self.envelope.idempotency_key or ""

    @property
    def id(self) -> str:
        """`topic/partition/offset`."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def identity_key(self) -> str:
        """The idempotency key or, without one, `partition:offset`."""
        return self.idempotency_key or f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Produced:
    """Where a message was stored."""

    partition: int
    offset: int
    topic: str = ""
    duplicate: bool = False
    already_done: bool = False
    routing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A message to produce. One of `value` (text or bytes) and `json` (any JSON value) is required."""

    topic: str
    value: str | bytes | None = None
    json: Any = ABSENT
    key: str | None = None
    run_id: str | None = None
    step_id: str | None = None
    parent_step_id: str | None = None
    tenant: str | None = None
    idempotency_key: str | None = None
    target_topic: str | None = None
    partition_override: int | None = None
    deadline: str | None = None
    retry_policy: RetryPolicy | Mapping[str, int] | None = None
    priority: int | None = None
    delay: float | None = None
    deliver_at: str | None = None
    labels: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """The body of its produce."""
        body: dict[str, Any] = {"topic": self.topic, **self._payload()}
        if self.key is not None:
            body["key"] = self.key
        policy = self.retry_policy
        envelope = _present(
            run_id=self.run_id,
            step_id=self.step_id,
            parent_step_id=self.parent_step_id,
            tenant_id=self.tenant,
            idempotency_key=self.idempotency_key,
            target_topic=self.target_topic,
            partition_override=self.partition_override,
            deadline=self.deadline,
            retry_policy=policy.as_json() if isinstance(policy, RetryPolicy) else policy,
            priority=self.priority,
            delay_ms=None if self.delay is None else milliseconds(self.delay),
            deliver_at=self.deliver_at,
            labels=self.labels,
        )
        if envelope:
            body["envelope"] = envelope
        return body

    def _payload(self) -> dict[str, str]:
        value = self.value
        if (value is None) == (self.json is ABSENT):
            raise Misuse("a message has either value or json")
        if value is None:
            return {"value": canonical_json(self.json)}
        if isinstance(value, str):
            return {"value": value}
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise Misuse(f"a message's value is {type(value).__name__}; use str or bytes, or json=")
        value = bytes(value)
        try:
            return {"value": value.decode("utf-8")}
        except UnicodeDecodeError:
            return {"value_base64": base64.b64encode(value).decode("ascii")}


def milliseconds(seconds: float) -> int:
    """A duration as the broker takes it."""
    return round(seconds * 1000)


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


_ENVELOPE_TEXTS = (
    "run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key", "target_topic", "deadline", "deliver_at",
)  # fmt: skip
_DEAD_LETTER_FIELDS = frozenset(DeadLetter.__dataclass_fields__)


def message_of(topic: str, item: Any) -> Message:
    """A message from an item of a stream or a peek. Fields that this version does not know are ignored."""
    if not isinstance(item, dict):
        raise ProtocolError(f"expected a message, got {type(item).__name__}")
    try:
        envelope = item.get("envelope")
        routing = item.get("routing")
        return Message(
            topic=topic,
            partition=_integer(item, "partition"),
            offset=_integer(item, "offset"),
            key=_text(item, "key"),
            value=_payload_of(item),
            attempts=_integer(item, "attempts") if "attempts" in item else 0,
            failures=_integer(item, "failures") if "failures" in item else 0,
            last_error=item.get("last_error") or "",
            lease_token=item.get("lease_token") or "",
            lease_until=item.get("lease_until") or "",
            produced_at=item.get("produced_at") or "",
            envelope=NO_ENVELOPE if not envelope else _envelope_of(envelope),
            routing=None if not routing else Routing(routing["label"], routing.get("meta") or {}),
            trace=item.get("trace"),
            lost=bool(item.get("lost", False)),
            redrives=item.get("redrives") or 0,
        )
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        if isinstance(error, ProtocolError):
            raise
        raise ProtocolError(f"a message is not as expected: {type(error).__name__} {error}") from error


def _payload_of(item: Mapping[str, Any]) -> bytes:
    if "value" in item:
        return str(item["value"]).encode("utf-8")
    encoded = item.get("value_base64")
    return b"" if encoded is None else base64.b64decode(encoded, validate=True)


def _envelope_of(fields: Mapping[str, Any]) -> Envelope:
    known: dict[str, Any] = {name: fields[name] for name in _ENVELOPE_TEXTS if name in fields}
    for name in ("partition_override", "priority"):
        if name in fields:
            known[name] = fields[name]
    if "retry_policy" in fields:
        known["retry_policy"] = _retry_policy_of(fields["retry_policy"])
    if "labels" in fields:
        known["labels"] = dict(fields["labels"])
    if "dlq" in fields:
        dead_letter = {name: value for name, value in fields["dlq"].items() if name in _DEAD_LETTER_FIELDS}
        if "retry_policy" in dead_letter:
            dead_letter["retry_policy"] = _retry_policy_of(dead_letter["retry_policy"])
        known["dlq"] = DeadLetter(**dead_letter)
    return Envelope(**known)


def _retry_policy_of(fields: Mapping[str, Any] | None) -> RetryPolicy | None:
    if fields is None:
        return None
    return RetryPolicy(fields.get("max_attempts"), fields.get("backoff_ms"), fields.get("max_backoff_ms"))


def produced_of(fields: Any) -> Produced:
    """Where a message was stored, from the answer of a produce or a line of one."""
    if not isinstance(fields, dict):
        raise ProtocolError(f"expected the answer of a produce, got {type(fields).__name__}")
    return Produced(
        partition=_integer(fields, "partition"),
        offset=_integer(fields, "offset"),
        topic=fields.get("topic") or "",
        duplicate=bool(fields.get("duplicate", False)),
        already_done=bool(fields.get("already_done", False)),
        routing=fields.get("routing"),
    )


def _integer(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProtocolError(f"the answer's field {name!r} is {value!r:.50}, expected an integer")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"the answer's field {name!r} is {value!r:.50}, expected a text")
    return value
