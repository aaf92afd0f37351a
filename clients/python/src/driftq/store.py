"""The store of effects: what it decides, and the contract that the broker's and others fulfil.

A store over another database (`driftq.postgres`) implements `Store` and passes the same cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from driftq.errors import ProtocolError
from driftq.scopes import Delivery, Identity

SUCCEEDED = "SUCCEEDED"
FAILED_FINAL = "FAILED_FINAL"
FAILED_RETRYABLE = "FAILED_RETRYABLE"


@dataclass(frozen=True, slots=True)
class Execute:
    """Run the effect, then finish it with the token. Not `idempotent`: the key is empty and nothing is kept."""

    attempt: int
    lease_token: str
    lease_until: str
    idempotent: bool = True


@dataclass(frozen=True, slots=True)
class Replay:
    """The effect has ended: this is its outcome. It is not run again."""

    status: str
    result: Any
    last_error: str
    response_code: int = 0
    result_lost: bool = False


@dataclass(frozen=True, slots=True)
class InProgressElsewhere:
    """Another worker runs the effect under a live lease."""

    retry_after: float


@dataclass(frozen=True, slots=True)
class Retryable:
    """The effect failed retryably; who is responsible for retries reacquires it."""

    attempt: int
    last_error: str
    status: str


Decision = Execute | Replay | InProgressElsewhere | Retryable


@dataclass(frozen=True, slots=True)
class Effect:
    """What a store knows of an effect."""

    status: str
    status_v1: str
    attempt: int
    owner: str
    lease_until: str | None
    result: Any
    response_code: int
    last_error: str
    request_hash: str | None
    updated_at: str
    expires_at: str
    result_lost: bool = False


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """An effect with its identity, as a list of effects has it."""

    identity: Identity
    effect: Effect


@runtime_checkable
class Store(Protocol):
    """Begin, finish, reacquire, renew, get and forget, with the guarantees of the store contract.

    `begin` grants an effect at most once at a time and never after it has ended. `finish`, `renew` and `reacquire`
    raise `StaleLease` or `Conflict` where another grant has been made or the effect has ended otherwise, `NotFound`
    where nothing is known. Times are seconds.
    """

    async def begin(
        self,
        identity: Identity,
        *,
        owner: str,
        lease: float = 0,
        ttl: float | None = None,
        expires_at: str | None = None,
        request_hash: str | None = None,
        on_expired: str | None = None,
        delivery: Delivery | None = None,
    ) -> Decision:
        """Asks whether to run the effect. A `request_hash` other than the first one is an `InvalidRequest` (422)."""
        ...

    async def finish(
        self,
        identity: Identity,
        *,
        lease_token: str,
        status: str,
        result: Any = None,
        response_code: int | None = None,
        last_error: str | None = None,
        dead_letter: bool = False,
        delivery: Delivery | None = None,
    ) -> None:
        """Records the outcome. The same outcome again is no error."""
        ...

    async def reacquire(self, identity: Identity, *, owner: str, lease: float = 0) -> Execute:
        """Grants an effect that failed retryably, or whose lease has expired, again."""
        ...

    async def renew(self, identity: Identity, *, lease_token: str, lease: float = 0) -> str:
        """Prolongs the lease of a grant; returns until when."""
        ...

    async def get(self, identity: Identity) -> Effect | None:
        """What is known of the effect."""
        ...

    async def forget(self, identity: Identity) -> bool:
        """Removes the effect; false where nothing was known."""
        ...


def decision_of(fields: Any) -> Decision:
    """The decision in an answer of begin, or in a line of a batch (where the effect's status has another name)."""
    try:
        status = fields["effect_status"] if "effect_status" in fields else fields["status"]
        match fields["decision"]:
            case "EXECUTE":
                return Execute(
                    int(fields["attempt"]), fields["lease_token"], fields["lease_until"], fields["idempotent"]
                )
            case "REPLAY":
                return Replay(
                    status,
                    fields["result"],
                    fields["last_error"],
                    fields["response_code"],
                    fields.get("result_lost", False),
                )
            case "RETRYABLE":
                return Retryable(int(fields["attempt"]), fields["last_error"], status)
            case other:
                raise ProtocolError(f"a begin was answered with the decision {other!r}")
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the answer of a begin lacks {error}") from error


def effect_of(fields: Any) -> Effect:
    """An effect from its JSON."""
    try:
        return Effect(
            status=fields["status"],
            status_v1=fields["status_v1"],
            attempt=fields["attempt"],
            owner=fields["owner"],
            lease_until=fields["lease_until"],
            result=fields["result"],
            response_code=fields["response_code"],
            last_error=fields["last_error"],
            request_hash=fields["request_hash"],
            updated_at=fields["updated_at"],
            expires_at=fields["expires_at"],
            result_lost=fields.get("result_lost", False),
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the answer about an effect lacks {error}") from error
