"""What errors of PostgreSQL mean to a caller of the store."""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from driftq.errors import (
    Conflict,
    DriftqError,
    InvalidRequest,
    Misuse,
    NotFound,
    PermissionDenied,
    ProtocolError,
    StaleLease,
    StorageFull,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)

REFUSALS: dict[str, tuple[type[DriftqError], int, str]] = {
    "QD400": (InvalidRequest, 400, "INVALID_ARGUMENT"),
    "QD404": (NotFound, 404, "NOT_FOUND"),
    "QD409": (Conflict, 409, "FAILED_PRECONDITION"),
    "QD410": (StaleLease, 409, "FAILED_PRECONDITION"),
    "QD422": (InvalidRequest, 422, "IDEMPOTENCY_MISMATCH"),
}
"""The refusals of the functions of the schema, with status and code as the broker gives them."""

_NOTHING_COMMITTED = (
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "53300",  # too_many_connections
    "55P03",  # lock_not_available
    "57014",  # query_canceled: a statement timeout
    "57P03",  # cannot_connect_now: the server starts or stops
    "25006",  # read_only_sql_transaction: a server that is not the primary
)
"""The server says that the statement did nothing."""

_CONNECTION_ENDED = ("57P01", "57P02", "57P05")
"""The server ends the connection: before the statement, in it, or after its commit."""

_NO_SCHEMA = ("3F000", "42883", "42P01")


def error_of(error: BaseException) -> DriftqError:
    """The error of the client for one of psycopg or of its pool."""
    if isinstance(error, PoolClosed):
        return Misuse("the pool of the store is closed or has not been opened")
    if isinstance(error, (PoolTimeout, TooManyRequests)):
        return Unavailable(f"no connection to PostgreSQL: {error}")
    if not isinstance(error, psycopg.Error):
        return UnknownOutcome(f"PostgreSQL did not answer in time: {error!r}", retry_is_safe=True)
    state = error.sqlstate or ""
    message = error.diag.message_primary or str(error)
    if state in REFUSALS:
        refusal, status, code = REFUSALS[state]
        return refusal(message, status=status, code=code)
    if state in _NO_SCHEMA:
        return ProtocolError(f"{message}: the database lacks the schema of the store; run PostgresStore.migrate")
    if state in _NOTHING_COMMITTED:
        return Unavailable(message, code=state)
    if state.startswith("28"):
        return Unauthenticated(message, code=state)
    if state == "42501":
        return PermissionDenied(message, code=state)
    if state in ("53100", "53200"):
        return StorageFull(message, code=state)
    if state in _CONNECTION_ENDED or state.startswith("08") or (not state and _is_of_connection(error)):
        # A call repeated has the same token or nonce: it cannot double.
        return UnknownOutcome(message, code=state, retry_is_safe=True)
    if state.startswith(("22", "23")) or (not state and isinstance(error, psycopg.DataError)):
        return InvalidRequest(message, code=state)
    return UnknownOutcome(message, code=state)


def _is_of_connection(error: psycopg.Error) -> bool:
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
