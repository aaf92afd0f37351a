"""The statements for what is ordinary do what the functions of the schema do, and leave all else to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.rows import dict_row

from driftq import Delivery, Execute, Identity, ProtocolError, scopes
from driftq.postgres import PostgresStore, migrate, statements
from postgres_server import Server, needs_postgres
from support import asynchronous

pytestmark = needs_postgres

LONG = "x" * 256
NONCE = "0123456789abcdef"
TOKEN = f"{1:024x}"
FUTURE = "2099-01-01T00:00:00+01:00"
PAST = "2020-01-01T00:00:00Z"

BEGIN = {
    "tenant": "", "kind": "rpc", "id": "alice", "detail": "/charge", "key": "k", "owner": "w", "lease_ms": "0",
    "ttl_ms": None, "keep_until": None, "request_hash": None, "on_expired": None, "partition": None, "offset": None,
    "delivery_token": None, "nonce": NONCE,
}  # fmt: skip
CONSUME = {"kind": "consume", "id": "orders", "detail": "kitchen"}
DELIVERED = {"partition": "3", "offset": "7", "delivery_token": TOKEN}
NEW: list[dict[str, str | None]] = [
    {},
    {"tenant": "acme", "owner": "é" * 127},
    {"kind": "tenant", "id": "", "detail": ""},
    {"kind": "job", "id": "nightly", "detail": "", "lease_ms": "1"},
    {"kind": "task", "id": "é" * 127, "detail": "", "lease_ms": "999999999999"},
    {**CONSUME, **DELIVERED},
    {"ttl_ms": "0", "lease_ms": "5000", "on_expired": "report"},
    {"ttl_ms": "12345", "request_hash": LONG[1:], "on_expired": "take_over"},
    {"keep_until": FUTURE},
    {"key": LONG[1:], "partition": "1", "offset": "2"},
]
NOT_NEW: list[dict[str, str | None]] = [
    {"key": ""},
    {"key": LONG},
    {"tenant": LONG},
    {"kind": "other"},
    {"kind": "job"},
    {"kind": "tenant", "id": ""},
    {"id": ""},
    {"detail": "é" * 128},
    {"owner": ""},
    {"owner": "é" * 128},
    {"request_hash": LONG},
    {"on_expired": "ask"},
    {"ttl_ms": "-1"},
    {"ttl_ms": "1", "keep_until": FUTURE},
    {"keep_until": PAST},
    DELIVERED,
]

FINISH = {
    "tenant": "", "kind": "rpc", "id": "alice", "detail": "/charge", "key": "k", "token": "", "status": "SUCCEEDED",
    "result": None, "response_code": "0", "last_error": "",
}  # fmt: skip
ENDS: list[dict[str, str | None]] = [
    {},
    {"result": '{"b": 1.0,  "a":2}', "response_code": "201"},
    {"result": "null"},
    {"result": '"' + "x" * 65_534 + '"', "last_error": "é" * 2_048},
    {"status": "FAILED_FINAL", "last_error": "declined"},
    {"status": "FAILED_RETRYABLE"},
]
NO_ENDS: list[dict[str, str | None]] = [
    {"status": "IN_PROGRESS"},
    {"status": "DONE"},
    {"result": '"' + "x" * 65_535 + '"'},
    {"last_error": "é" * 2_049},
    {"key": "other"},
    {"token": "0" * 32},
]

STORED = (
    "SELECT tenant, scope_kind, scope_id, scope_detail, key, status, attempt, right(lease_token, 16) AS nonce, owner,"
    " ('x' || left(lease_token, 16))::bit(64)::bigint = (extract(epoch FROM created_at) * 1000000)::bigint AS is_time,"
    " CASE status WHEN 'IN_PROGRESS' THEN lease_until - updated_at END AS leased, delivery_partition, delivery_offset,"
    " delivery_token, request_hash, response_code, result::text, last_error, ttl_ms, keep_until,"
    " CASE WHEN keep_until IS NULL THEN expires_at - updated_at ELSE expires_at - keep_until END AS kept,"
    " created_at <= updated_at AND updated_at <= clock_timestamp() AS is_ordered FROM driftq.effects"
)


async def connected(conninfo: str) -> AsyncConnection[Any]:
    connection = await AsyncConnection.connect(conninfo, autocommit=True)
    await connection.execute("TRUNCATE driftq.effects")
    return connection


async def rows(connection: AsyncConnection[Any], statement: str | bytes, parameters: Sequence[Any]) -> Any:
    cursor = AsyncRawCursor(connection, row_factory=dict_row)
    await cursor.execute(statement, parameters)
    return await cursor.fetchall()


async def stored(connection: AsyncConnection[Any]) -> Any:
    found = await rows(connection, STORED, ())
    await connection.execute("TRUNCATE driftq.effects")
    return found


@pytest.mark.parametrize("case", NEW)
@asynchronous
async def test_statement_for_a_new_effect_stores_and_answers_what_the_function_does(
    database: str, case: dict[str, str | None]
) -> None:
    parameters = list({**BEGIN, **case}.values())
    async with await connected(database) as connection:
        (by_function,) = await rows(connection, statements.BEGIN, parameters)
        expected = await stored(connection)
        (by_statement,) = await rows(connection, statements.BEGIN_NEW, parameters)
        assert await stored(connection) == expected
        assert expected[0]["is_time"]
        for field in ("lease_token", "lease_until"):
            assert by_statement[field] > by_function[field]
            assert len(by_statement[field]) == len(by_function[field])
            by_statement[field] = by_function[field]
        assert by_statement == {field: by_function[field] for field in by_statement}


@pytest.mark.parametrize("case", NOT_NEW)
@asynchronous
async def test_statement_for_a_new_effect_leaves_what_is_invalid_to_the_function(
    database: str, case: dict[str, str | None]
) -> None:
    parameters = list({**BEGIN, **case}.values())
    async with await connected(database) as connection:
        assert await rows(connection, statements.BEGIN_NEW, parameters) == []
        if case != {"key": ""}:
            with pytest.raises(psycopg.Error) as refused:
                await rows(connection, statements.BEGIN, parameters)
            assert refused.value.sqlstate == "QD400"
        assert await stored(connection) == []


@asynchronous
async def test_function_gives_the_grant_of_the_statement_whose_answer_was_lost(database: str) -> None:
    parameters = list(BEGIN.values())
    async with await connected(database) as connection:
        (lost,) = await rows(connection, statements.BEGIN_NEW, parameters)
        assert await rows(connection, statements.BEGIN_NEW, parameters) == []
        (again,) = await rows(connection, statements.BEGIN, parameters)
        assert {field: again[field] for field in lost} == lost
        (other,) = await rows(connection, statements.BEGIN, [*parameters[:-1], NONCE[::-1]])
        assert other["decision"] == "IN_PROGRESS"


@asynchronous
async def test_statement_for_the_newest_grant_ends_nothing_that_has_expired(database: str) -> None:
    async with await connected(database) as connection:
        begin = {**BEGIN, "ttl_ms": "0", "lease_ms": "100"}
        (grant,) = await rows(connection, statements.BEGIN_NEW, list(begin.values()))
        live = "SELECT FROM driftq.effects WHERE expires_at > clock_timestamp()"
        while await rows(connection, live, ()):  # noqa: ASYNC110 — the server's clock decides
            await asyncio.sleep(0.02)
        parameters = {**FINISH, "token": grant["lease_token"]}
        assert await rows(connection, statements.FINISH_NEWEST, list(parameters.values())) == []
        assert len(await stored(connection)) == 1


@pytest.mark.parametrize("case", ENDS)
@asynchronous
async def test_statement_for_the_newest_grant_stores_what_the_function_does(
    database: str, case: dict[str, str | None]
) -> None:
    found = []
    async with await connected(database) as connection:
        for statement, others in ((statements.FINISH, ["true"]), (statements.FINISH_NEWEST, [])):
            (grant,) = await rows(connection, statements.BEGIN, list({**BEGIN, "ttl_ms": "12345"}.values()))
            parameters = {**FINISH, "token": grant["lease_token"], **case}
            assert len(await rows(connection, statement, [*parameters.values(), *others])) == 1
            found.append(await stored(connection))
    assert found[0] == found[1]


@pytest.mark.parametrize("case", NO_ENDS)
@asynchronous
async def test_statement_for_the_newest_grant_leaves_all_else_to_the_function(
    database: str, case: dict[str, str | None]
) -> None:
    async with await connected(database) as connection:
        (grant,) = await rows(connection, statements.BEGIN, list(BEGIN.values()))
        parameters = {**FINISH, "token": grant["lease_token"], **case}
        assert await rows(connection, statements.FINISH_NEWEST, list(parameters.values())) == []
        with pytest.raises(psycopg.Error) as refused:
            await rows(connection, statements.FINISH, [*parameters.values(), "false"])
        assert str(refused.value.sqlstate).startswith("QD4")
        (effect,) = await stored(connection)
        assert effect["status"] == "IN_PROGRESS"


@asynchronous
async def test_statements_change_nothing_where_the_session_would_not_wait_for_the_disk(database: str) -> None:
    async with await connected(database) as connection:
        (grant,) = await rows(connection, statements.BEGIN_NEW, list(BEGIN.values()))
        await connection.execute("SET synchronous_commit = off")
        assert await rows(connection, statements.BEGIN_NEW, list({**BEGIN, "key": "other"}.values())) == []
        parameters = {**FINISH, "token": grant["lease_token"]}
        assert await rows(connection, statements.FINISH_NEWEST, list(parameters.values())) == []
        assert [effect["status"] for effect in await stored(connection)] == ["IN_PROGRESS"]


@asynchronous
async def test_functions_are_called_for_what_is_not_ordinary_and_for_nothing_else(postgres_server: Server) -> None:
    database = postgres_server.create_database()
    async with await AsyncConnection.connect(database, autocommit=True) as connection:
        await migrate(connection)
        for name in ("begin_effect", "finish_effect"):
            await connection.execute(f"ALTER FUNCTION driftq.{name} RENAME TO no_{name}".encode())
        async with PostgresStore.connect(database) as store:
            charge = Identity(scopes.rpc("alice", "/charge"), "k")
            order = Identity(scopes.consume("orders", "kitchen"), "k")
            grant = await store.begin(charge, owner="w", lease=30, ttl=5, request_hash="h", on_expired="report")
            assert isinstance(grant, Execute)
            other = await store.begin(order, owner="w", expires_at=FUTURE, delivery=Delivery(0, 7, TOKEN))
            assert isinstance(other, Execute)
            calls = [
                lambda: store.begin(charge, owner="w"),
                lambda: store.begin(Identity(charge.scope, ""), owner="w"),
                lambda: store.begin(Identity(charge.scope, "other"), owner=""),
                lambda: store.finish(charge, lease_token=other.lease_token, status="SUCCEEDED"),
            ]
            await called(calls)
            await store.finish(charge, lease_token=grant.lease_token, status="SUCCEEDED", result={"a": 1})
            async with connection.transaction():
                await store.finish(order, lease_token=other.lease_token, status="SUCCEEDED", connection=connection)
            await called(
                [
                    lambda: store.finish(charge, lease_token=grant.lease_token, status="SUCCEEDED", result={"a": 1}),
                    lambda: store.begin(order, owner="w"),
                ]
            )


async def called(calls: Sequence[Any]) -> None:
    """Each of them calls a function, which is not there."""
    for call in calls:
        with pytest.raises(ProtocolError, match=r"does not exist"):
            await asyncio.wait_for(call(), 5)
