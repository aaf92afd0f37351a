"""`Store` over PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
import time
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from driftq.backoff import Backoff
from driftq.canonical import json_text
from driftq.errors import DriftqError, Misuse, ProtocolError, Unavailable, UnknownOutcome
from driftq.messages import milliseconds
from driftq.postgres import statements
from driftq.postgres.failures import error_of
from driftq.postgres.migrations import migrate
from driftq.scopes import Delivery, Identity, Scope
from driftq.store import Decision, Effect, EffectRecord, Execute, InProgressElsewhere, decision_of, effect_of

if TYPE_CHECKING:
    from typing_extensions import LiteralString

Row = dict[str, Any]
Parameters = Sequence[Any]
Statement = Union["LiteralString", bytes]
Query = tuple[Statement, Parameters]
# Named here: in the class `list` is a method.
Rows = list[Row]
Page = tuple[list[EffectRecord], str | None]

POOL_SIZE_MAX = 10
SWEEP_BATCH = 1_000

_STATUS_V1 = {
    "IN_PROGRESS": "PENDING",
    "SUCCEEDED": "COMMITTED",
    "FAILED_FINAL": "FAILED",
    "FAILED_RETRYABLE": "FAILED",
}

# What the two fields of a scope are called, by its kind.
_FIELDS = {
    "consume": ("topic", "group"),
    "tenant": (),
    "job": ("id",),
    "task": ("id",),
    "rpc": ("principal", "method"),
}


class PostgresStore:
    """Effects in a table of your own database: `finish` can share a transaction with what the effect writes.

    A call that fails because the connection or the server did is repeated for `retry_for` seconds; one whose answer was
    lost gets the same answer again. A single try takes at most `timeout` seconds.
    """

    def __init__(
        self, pool: AsyncConnectionPool[AsyncConnection[Any]], *, timeout: float = 30, retry_for: float = 60
    ) -> None:
        self._pool = pool
        self._owns_pool = False
        self._timeout = timeout
        self._retry_for = retry_for

    @classmethod
    def connect(
        cls, conninfo: str, *, max_size: int = POOL_SIZE_MAX, timeout: float = 30, retry_for: float = 60
    ) -> PostgresStore:
        """A store with a pool of its own, opened and closed as a context manager."""
        pool = AsyncConnectionPool(
            conninfo, min_size=1, max_size=max_size, open=False, timeout=timeout, kwargs={"autocommit": True}
        )
        store = cls(pool, timeout=timeout, retry_for=retry_for)
        store._owns_pool = True
        return store

    async def __aenter__(self) -> PostgresStore:
        if self._owns_pool:
            await self._pool.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._owns_pool:
            await self._pool.close()

    async def migrate(self) -> list[int]:
        """Brings the schema of the database up to date; returns the numbers of the migrations it lacked."""
        try:
            async with self._pool.connection() as connection:
                return await migrate(connection)
        except (psycopg.Error, TimeoutError) as error:
            raise error_of(error) from error

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
        """As `Store.begin`. A newer delivery of the same message takes the effect over from an older one."""
        delivered = (None, None, None) if delivery is None else (
            delivery.partition, delivery.offset, delivery.lease_token,
        )  # fmt: skip
        parameters = (
            *_identity_of(identity), owner, milliseconds(lease), None if ttl is None else milliseconds(ttl),
            expires_at, request_hash, on_expired, *delivered, secrets.token_hex(8),
        )  # fmt: skip
        row = await self._row(statements.BEGIN, parameters, (statements.BEGIN_NEW, parameters))
        if row["decision"] == "IN_PROGRESS":
            return InProgressElsewhere(row["retry_after_ms"] / 1000)
        return decision_of(_with_result(row))

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
        connection: AsyncConnection[Any] | None = None,
    ) -> None:
        """As `Store.finish`; `dead_letter` and `delivery` are the broker's and are not looked at.

        With a `connection` the outcome is part of the transaction that is open there: it is committed with what else
        the transaction writes, or not at all. A refusal, such as `StaleLease`, makes that transaction fail: a worker
        that has lost its effect cannot commit. Here the same outcome again is a `Conflict`: a transaction whose commit
        was not answered may be repeated, and fails if it was committed.
        """
        parameters = (
            *_identity_of(identity), lease_token, status, None if result is None else json_text(result),
            response_code or 0, (last_error or "").replace("\0", "\N{REPLACEMENT CHARACTER}"),
        )  # fmt: skip
        newest = (statements.FINISH_NEWEST, parameters)
        if connection is None:
            await self._row(statements.FINISH, (*parameters, False), newest)
        else:
            await _answer(connection, (statements.FINISH, (*parameters, True)), newest)

    async def reacquire(self, identity: Identity, *, owner: str, lease: float = 0) -> Execute:
        """As `Store.reacquire`."""
        parameters = (*_identity_of(identity), owner, milliseconds(lease), secrets.token_hex(8))
        row = await self._row(statements.REACQUIRE, parameters)
        return Execute(row["attempt"], row["lease_token"], row["lease_until"])

    async def renew(self, identity: Identity, *, lease_token: str, lease: float = 0) -> str:
        """As `Store.renew`."""
        row = await self._row(statements.RENEW, (*_identity_of(identity), lease_token, milliseconds(lease)))
        return str(row["lease_until"])

    async def get(self, identity: Identity) -> Effect | None:
        """As `Store.get`."""
        rows = await self._call(statements.GET, _identity_of(identity))
        return _effect_of(rows[0]) if rows else None

    async def forget(self, identity: Identity) -> bool:
        """As `Store.forget`."""
        return bool((await self._row(statements.FORGET, _identity_of(identity)))["known"])

    async def list(
        self,
        *,
        tenant: str = "",
        kind: str = "",
        status: str = "",
        older_than: float | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page:
        """A page of effects, and what to give as `after` for the next one (`None` with the last).

        A retry worker lists `FAILED_RETRYABLE` and `IN_PROGRESS`, and reacquires what it finds.
        """
        limit = 100 if limit is None else limit
        parameters = (
            tenant or None, kind or None, status or None, milliseconds(older_than or 0), limit, _parts_of(after),
        )  # fmt: skip
        rows = await self._call(statements.LIST, parameters)
        records = [EffectRecord(_identity_in(row), _effect_of(row)) for row in rows]
        if len(rows) < limit:
            return records, None
        return records, json.dumps([rows[-1][part] for part in _PARTS])

    async def sweep(self, batch: int = SWEEP_BATCH) -> int:
        """Removes all effects whose time is over, so many at a time; returns how many.

        Each batch is a transaction of its own and waits for no other, so several processes may sweep at once. What has
        expired counts as not known whether it has been swept or not.
        """
        removed = 0
        while True:
            count: int = (await self._row(statements.SWEEP, (batch,)))["removed"]
            removed += count
            if count < batch:
                return removed

    async def keep_swept(self, every: float = 60, batch: int = SWEEP_BATCH) -> None:
        """Sweeps now and every so many seconds, until cancelled. Outlasts times without a server."""
        while True:
            with contextlib.suppress(Unavailable, UnknownOutcome):
                await self.sweep(batch)
            await asyncio.sleep(every)

    async def _row(self, function: Statement, parameters: Parameters, ordinary: Query | None = None) -> Row:
        rows = await self._call(function, parameters, ordinary)
        if len(rows) != 1:
            raise ProtocolError(f"a function of the store returned {len(rows)} rows instead of one")
        return rows[0]

    async def _call(self, function: Statement, parameters: Parameters, ordinary: Query | None = None) -> Rows:
        """As `_answer`, again where the server or the connection has failed."""
        backoff: Backoff | None = None
        give_up_at = time.monotonic() + self._retry_for
        while True:
            try:
                return await self._call_once((function, parameters), ordinary)
            except DriftqError as error:
                failure, cause = error, error.__cause__
            except (psycopg.Error, TimeoutError, asyncio.TimeoutError) as error:
                failure, cause = error_of(error), error
            backoff = backoff or Backoff()
            pause = backoff.next_pause()
            if not failure.retry_is_safe or time.monotonic() + pause > give_up_at:
                raise failure from cause
            await asyncio.sleep(pause)

    async def _call_once(self, function: Query, ordinary: Query | None) -> Rows:
        connection = await self._pool.getconn(self._timeout)
        try:
            if connection.autocommit:
                # Each statement is a transaction: there is none to end.
                return await _bounded(_answer(connection, function, ordinary), self._timeout)
            async with connection:
                return await _bounded(_answer(connection, function, ordinary), self._timeout)
        finally:
            await self._pool.putconn(connection)


async def _bounded(call: Coroutine[Any, Any, Rows], seconds: float) -> Rows:
    if sys.version_info < (3, 11):
        return await asyncio.wait_for(call, seconds)
    # Without a task of its own.
    async with asyncio.timeout(seconds):
        return await call


async def _answer(connection: AsyncConnection[Any], function: Query, ordinary: Query | None) -> Rows:
    """Calls a function, unless a statement for what is ordinary, if there is one, returns a row."""
    try:
        # Not the cursor of the connection, which may be of any kind.
        cursor = AsyncRawCursor(connection, row_factory=dict_row)
        if ordinary is not None:
            statement, parameters = ordinary
            await cursor.execute(statement, _texts(parameters))
            if rows := await cursor.fetchall():
                return rows
        statement, parameters = function
        await cursor.execute(statement, _texts(parameters))
        return await cursor.fetchall()
    except psycopg.Error as error:
        raise error_of(error) from error


def _texts(parameters: Parameters) -> list[Any]:
    """Parameters for psycopg. Integers as texts: with types by their size, each size would be planned for by itself."""
    texts = []
    for parameter in parameters:
        if isinstance(parameter, str):
            _check_text(parameter)
        elif isinstance(parameter, int):
            parameter = str(parameter)
        texts.append(parameter)
    return texts


def _check_text(text: str) -> None:
    """PostgreSQL has neither in a text."""
    if "\0" in text:
        raise Misuse("PostgreSQL stores no text with the character U+0000")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise Misuse("a text has a lone surrogate") from None


_PARTS = ("tenant", "scope_kind", "scope_id", "scope_detail", "key")


def _identity_of(identity: Identity) -> tuple[str, str, str, str, str]:
    """The columns of an identity."""
    scope = identity.scope
    names = _FIELDS.get(scope.kind)
    fields = dict(scope.fields)
    if names is None or set(fields) != set(names):
        raise Misuse(f"there is no scope {scope.kind!r} with the fields {sorted(fields)}")
    values = [fields[name] for name in names] + ["", ""]
    return identity.tenant, scope.kind, values[0], values[1], identity.key


def _identity_in(row: Row) -> Identity:
    values = (row["scope_id"], row["scope_detail"])
    scope = Scope(row["scope_kind"], tuple(zip(_FIELDS[row["scope_kind"]], values, strict=False)))
    return Identity(scope, row["key"], row["tenant"])


def _parts_of(after: str | None) -> list[str] | None:
    if after is None:
        return None
    try:
        parts = json.loads(after)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise Misuse("after is not what a list of effects returned")
    return parts


def _with_result(row: Row) -> Row:
    text = row["result"]
    return {**row, "result": None if text is None else json.loads(text)}


def _effect_of(row: Row) -> Effect:
    return effect_of({**_with_result(row), "status_v1": _STATUS_V1[row["status"]]})
