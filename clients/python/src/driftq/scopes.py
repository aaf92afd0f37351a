"""Scopes and identities of effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driftq.errors import Misuse


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope within which a key is unique. Made by the functions of this module."""

    kind: str
    fields: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, str]:
        """The scope as the broker takes it."""
        return {"kind": self.kind, **dict(self.fields)}


def consume(topic: str, group: str) -> Scope:
    """A group's work on a message."""
    return Scope("consume", (("topic", topic), ("group", group)))


def tenant() -> Scope:
    """Anything of a tenant's that has a name of its own."""
    return Scope("tenant")


def job(job_id: str) -> Scope:
    """A job of some registry."""
    return Scope("job", (("id", job_id),))


def task(task_id: str) -> Scope:
    """A task of some registry."""
    return Scope("task", (("id", task_id),))


def rpc(principal: str, method: str) -> Scope:
    """A call of a service: who calls, and what."""
    return Scope("rpc", (("principal", principal), ("method", method)))


def scope_of(fields: Mapping[str, str]) -> Scope:
    """A scope from its JSON."""
    rest = dict(fields)
    try:
        return Scope(rest.pop("kind"), tuple(rest.items()))
    except KeyError:
        raise Misuse("a scope needs a kind") from None


@dataclass(frozen=True, slots=True)
class Identity:
    """What an effect is known by. An empty tenant is `default`; an empty key means no idempotency."""

    scope: Scope
    key: str
    tenant: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields that every request about the effect begins with."""
        fields: dict[str, Any] = {"scope": self.scope.as_json(), "key": self.key}
        if self.tenant:
            fields["tenant_id"] = self.tenant
        return fields

    def as_query(self) -> dict[str, str]:
        """The same as query parameters."""
        query = {**self.scope.as_json(), "key": self.key}
        if self.tenant:
            query["tenant_id"] = self.tenant
        return query


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery that an effect is begun for."""

    partition: int
    offset: int
    lease_token: str

    def as_json(self) -> dict[str, Any]:
        """The delivery as the broker takes it."""
        return {"partition": self.partition, "offset": self.offset, "lease_token": self.lease_token}
