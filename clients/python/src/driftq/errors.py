"""Errors of the client, and how an answer of the broker becomes one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

SHOWN_BYTES = 200
"""How much of an unexpected answer an error message quotes."""


class DriftqError(Exception):
    """Base of all errors of the client.

    `kind` is the same text in every language's client. `status` is 0 where no answer came. `retry_is_safe` says that
    sending the same call again can do no harm. `retry_after` is in seconds.
    """

    kind: ClassVar[str] = "unknown"
    safe: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        retry_after: float | None = None,
        retry_is_safe: bool | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.retry_is_safe = self.safe if retry_is_safe is None else retry_is_safe
        self.details: Mapping[str, Any] = details or {}

    def __str__(self) -> str:
        answered = f" ({f'{self.status} {self.code}'.rstrip()})" if self.status else ""
        return f"{self.kind}{answered}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        """The error as the object that the conformance protocol uses."""
        return {
            "kind": self.kind,
            "status": self.status,
            "code": self.code,
            "message": self.message,
            "retry_is_safe": self.retry_is_safe,
        }


class InvalidRequest(DriftqError):
    """The broker refused the request itself: it would be refused again."""

    kind = "invalid"


class Unauthenticated(DriftqError):
    """The key is missing, unknown or revoked."""

    kind = "unauthenticated"


class PermissionDenied(DriftqError):
    """The key does not allow this."""

    kind = "permission_denied"


class NotFound(DriftqError):
    """No such topic, group, effect or route."""

    kind = "not_found"


class Conflict(DriftqError):
    """Something exists with other settings, or an effect has ended otherwise."""

    kind = "conflict"


class StaleLease(DriftqError):
    """The message or effect now belongs to another worker."""

    kind = "stale_lease"


class InProgress(DriftqError):
    """Another worker runs the effect under a live lease."""

    kind = "in_progress"
    safe = True


class Overloaded(DriftqError):
    """A limit of the broker is reached; nothing has changed."""

    kind = "overloaded"
    safe = True


class Unavailable(DriftqError):
    """The request was not carried out: the broker cannot be reached, or said that it did nothing."""

    kind = "unavailable"
    safe = True


class StorageFull(DriftqError):
    """The broker's disk is full; nothing has changed."""

    kind = "storage_full"
    safe = True


class UnknownOutcome(DriftqError):
    """The request may or may not have been carried out."""

    kind = "unknown"


class TlsError(DriftqError):
    """The certificate or the handshake was refused."""

    kind = "tls"


class ProtocolError(DriftqError):
    """The answer is not that of a DriftQ broker of a supported API."""

    kind = "protocol"

    def name(self, url: str) -> None:
        """Adds the URL that gave the answer to the message."""
        if url not in self.message:
            self.message = f"{url}: {self.message}"
            self.args = (self.message,)


class Misuse(DriftqError, ValueError):
    """The caller's mistake, found before anything was sent."""

    kind = "misuse"


_BY_STATUS: dict[int, type[DriftqError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    405: InvalidRequest,
    413: InvalidRequest,
    422: InvalidRequest,
    429: Overloaded,
    507: StorageFull,
}

# A proxy in front of the broker, or its HTTP library, answers these without the broker's JSON.
_CLEAR_WITHOUT_BODY = frozenset({401, 403, 408, 413, 414, 429, 431})


def shown(body: bytes) -> str:
    """The beginning of an unexpected answer, as an error message quotes it."""
    return repr(body[:SHOWN_BYTES].decode("utf-8", "replace"))


def error_of_answer(
    status: int, body: bytes, retry_after: float | None = None, *, repeatable: bool = False
) -> DriftqError:
    """The error that an answer other than 2xx means. `repeatable`: the request cannot double."""
    fields = _error_object(body)
    if fields is None and status < 500 and status not in _CLEAR_WITHOUT_BODY and not (status == 400 and not body):
        return ProtocolError(
            f"expected an answer of a DriftQ broker, got {status} with {shown(body)}",
            status=status,
        )
    return error_of_fields(status, fields or {}, retry_after, repeatable=repeatable)


def error_of_fields(
    status: int, fields: Mapping[str, Any], retry_after: float | None = None, *, repeatable: bool = False
) -> DriftqError:
    """The error that the fields of an answer, or of a line of a batch, mean."""
    code = str(fields.get("error", ""))
    message = str(fields.get("message", "")) or f"the server answered {status}"
    after_ms = fields.get("retry_after_ms")
    if isinstance(after_ms, (int, float)) and not isinstance(after_ms, bool):
        retry_after = max(retry_after or 0.0, after_ms / 1000)
    error_type = _type_of(status, fields)
    safe = repeatable if error_type is UnknownOutcome else None
    return error_type(
        message, status=status, code=code, retry_after=retry_after, retry_is_safe=safe, details=dict(fields)
    )


def _type_of(status: int, fields: Mapping[str, Any]) -> type[DriftqError]:
    if status == 409:
        if fields.get("decision") == "IN_PROGRESS":
            return InProgress
        return StaleLease if fields.get("message") in ("stale lease", "not owner") else Conflict
    if status == 503 and fields.get("committed") == "no":
        return Unavailable
    known = _BY_STATUS.get(status)
    if known is not None:
        return known
    return InvalidRequest if 400 <= status < 500 and status != 408 else UnknownOutcome


def _error_object(body: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and isinstance(parsed.get("error"), str) else None


def may_be_sent_again(error: DriftqError, repeatable: bool) -> bool:
    """Whether the client repeats a request that failed so: the table of the contract."""
    if isinstance(error, (Overloaded, Unavailable)):
        return True
    return isinstance(error, UnknownOutcome) and repeatable and error.status in (0, 408, 502, 503, 504)
