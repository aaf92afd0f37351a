"""Effects and the user's own rows in one transaction, deliveries, sweeping and lists."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from driftq import (
    Client,
    Conflict,
    Delivery,
    Execute,
    Identity,
    InProgressElsewhere,
    InvalidRequest,
    Misuse,
    Replay,
    StaleLease,
    Worker,
    scopes,
)
from driftq.postgres import PostgresStore
from driftq.testing import broker
from postgres_server import needs_postgres
from support import Events, asynchronous, fresh, needs_broker

pytestmark = needs_postgres

SHORT = 0.3


def identity(key: str = "key") -> Identity:
    return Identity(scopes.rpc("alice", "/charge"), fresh(key))


async def granted(store: PostgresStore, of: Identity, **options: Any) -> Execute:
    decision = await store.begin(of, **{"owner": "w", "lease": 30, **options})
    assert isinstance(decision, Execute)
    return decision


async def connected(conninfo: str) -> AsyncConnection[Any]:
    connection = await AsyncConnection.connect(conninfo, autocommit=True)
    await connection.execute("CREATE TABLE IF NOT EXISTS charges (key text)")
    return connection


async def charges(connection: AsyncConnection[Any], of: Identity) -> int:
    cursor = await connection.execute("SELECT count(*) FROM charges WHERE key = %s", (of.key,))
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


@asynchronous
async def test_rows_and_outcome_are_committed_together(database: str) -> None:
    async with PostgresStore.connect(database) as store, await connected(database) as connection:
        of = identity()
        grant = await granted(store, of)
        async with connection.transaction():
            await connection.execute("INSERT INTO charges VALUES (%s)", (of.key,))
            await store.finish(
                of, lease_token=grant.lease_token, status="SUCCEEDED", result={"a": 1}, connection=connection
            )
            # Not committed: it does not show, and asking does not wait.
            assert isinstance(await store.begin(of, owner="other"), InProgressElsewhere)
        decision = await store.begin(of, owner="other")
        assert isinstance(decision, Replay)
        assert decision.result == {"a": 1}
        assert await charges(connection, of) == 1


@asynchronous
async def test_transaction_repeated_after_its_commit_changes_nothing(database: str) -> None:
    async with PostgresStore.connect(database) as store, await connected(database) as connection:
        of = identity()
        grant = await granted(store, of)

        async def charge() -> None:
            async with connection.transaction():
                await connection.execute("INSERT INTO charges VALUES (%s)", (of.key,))
                await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED", connection=connection)

        await charge()
        with pytest.raises(Conflict, match="ended already"):
            await charge()
        assert await charges(connection, of) == 1
        await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED")


@asynchronous
async def test_transaction_that_rolls_back_leaves_the_effect_in_progress(database: str) -> None:
    async with PostgresStore.connect(database) as store, await connected(database) as connection:
        of = identity()
        grant = await granted(store, of)
        async with connection.transaction(force_rollback=True):
            await connection.execute("INSERT INTO charges VALUES (%s)", (of.key,))
            await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED", connection=connection)
        assert await charges(connection, of) == 0
        await store.finish(of, lease_token=grant.lease_token, status="FAILED_RETRYABLE", last_error="division")


@asynchronous
async def test_worker_that_lost_its_effect_cannot_commit_even_if_it_ignores_the_refusal(database: str) -> None:
    async with PostgresStore.connect(database) as store, await connected(database) as connection:
        of = identity()
        first = await granted(store, of, lease=SHORT)
        await asyncio.sleep(SHORT + 0.1)
        second = await granted(store, of, on_expired="take_over")
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO charges VALUES (%s)", (of.key,))
        with pytest.raises(StaleLease):
            await store.finish(of, lease_token=first.lease_token, status="SUCCEEDED", connection=connection)
        await connection.execute("COMMIT")
        assert await charges(connection, of) == 0
        await store.finish(of, lease_token=second.lease_token, status="SUCCEEDED")


@asynchronous
async def test_expired_effect_that_is_just_being_finished_is_not_granted_and_not_waited_for(database: str) -> None:
    async with PostgresStore.connect(database) as store, await connected(database) as connection:
        of = identity()
        grant = await granted(store, of, lease=SHORT)
        async with connection.transaction():
            await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED", result=1, connection=connection)
            await asyncio.sleep(SHORT + 0.1)
            decision = await asyncio.wait_for(store.begin(of, owner="other", on_expired="take_over"), 5)
            assert decision == InProgressElsewhere(0.1)
            with pytest.raises(Conflict):
                await asyncio.wait_for(store.reacquire(of, owner="other"), 5)
        assert isinstance(await store.begin(of, owner="other"), Replay)


@asynchronous
async def test_commits_are_durable_where_the_session_would_not_wait(database: str) -> None:
    async with PostgresStore.connect(database) as store, await connected(database) as connection:
        of = identity()
        grant = await granted(store, of)
        await connection.execute("SET synchronous_commit = off")
        async with connection.transaction():
            await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED", connection=connection)
            cursor = await connection.execute("SHOW synchronous_commit")
            assert await cursor.fetchone() == ("on",)
        cursor = await connection.execute("SHOW synchronous_commit")
        assert await cursor.fetchone() == ("off",)


@asynchronous
async def test_newer_delivery_of_a_message_takes_over_and_an_older_one_is_stale(database: str) -> None:
    async with PostgresStore.connect(database) as store:
        of = Identity(scopes.consume("orders", "kitchen"), fresh("order"))
        older, newer, other = (Delivery(0, offset, f"{n:024x}") for offset, n in ((7, 9), (7, 10), (8, 11)))
        first = await granted(store, of, delivery=older)
        assert isinstance(await store.begin(of, owner="other", delivery=older), InProgressElsewhere)
        assert isinstance(await store.begin(of, owner="other", delivery=other), InProgressElsewhere)
        second = await granted(store, of, delivery=newer)
        assert second.attempt == 2
        assert second.lease_token > first.lease_token
        with pytest.raises(StaleLease):
            await store.begin(of, owner="w", delivery=older)
        with pytest.raises(StaleLease):
            await store.finish(of, lease_token=first.lease_token, status="SUCCEEDED")
        await store.finish(of, lease_token=second.lease_token, status="SUCCEEDED")
        assert isinstance(await store.begin(of, owner="w", delivery=older), Replay)
        with pytest.raises(InvalidRequest):
            await store.begin(identity(), owner="w", delivery=newer)


@asynchronous
async def test_time_of_expiry_can_be_given(database: str) -> None:
    async with PostgresStore.connect(database) as store:
        of = identity()
        grant = await granted(store, of, expires_at="2099-01-01T00:00:00+01:00")
        await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED")
        effect = await store.get(of)
        assert effect is not None
        assert effect.expires_at == "2098-12-31T23:00:00.000000Z"
        for wrong in ("2020-01-01T00:00:00Z", "soon"):
            with pytest.raises(InvalidRequest):
                await store.begin(identity(), owner="w", expires_at=wrong)


@asynchronous
async def test_what_postgres_cannot_store_is_found_before_it_is_sent(database: str) -> None:
    async with PostgresStore.connect(database) as store:
        for key in ("a\0b", "a\ud800"):
            with pytest.raises(Misuse):
                await store.begin(Identity(scopes.tenant(), key), owner="w")
        with pytest.raises(Misuse):
            await store.begin(Identity(scopes.Scope("job", (("name", "x"),)), "k"), owner="w")
        of = identity()
        grant = await granted(store, of)
        await store.finish(of, lease_token=grant.lease_token, status="FAILED_RETRYABLE", last_error="a\0b")
        effect = await store.get(of)
        assert effect is not None
        assert effect.last_error == "a\N{REPLACEMENT CHARACTER}b"


@asynchronous
async def test_sweep_removes_what_has_expired_in_batches_and_waits_for_nothing(database: str) -> None:
    async with PostgresStore.connect(database) as store, await connected(database) as connection:
        live, locked, *gone = (identity() for _ in range(9))
        await store.finish(live, lease_token=(await granted(store, live)).lease_token, status="SUCCEEDED")
        for of in (locked, *gone):
            grant = await granted(store, of, ttl=0)
            await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED")
        leased = identity()
        await granted(store, leased, ttl=0)
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM driftq.effects WHERE key = %s FOR UPDATE", (locked.key,))
            assert await asyncio.wait_for(store.sweep(batch=3), 5) == len(gone)
        cursor = await connection.execute("SELECT count(*) FROM driftq.effects WHERE key = %s", (locked.key,))
        assert await cursor.fetchone() == (1,)
        assert await store.sweep() == 1
        assert await store.get(live) is not None
        assert await store.get(leased) is not None


@asynchronous
async def test_retry_worker_finds_what_has_failed_and_reacquires_it(database: str) -> None:
    async with PostgresStore.connect(database) as store:
        tenant = fresh("tenant")
        every = [Identity(scopes.rpc("alice", f"/{n % 3}"), fresh("key"), tenant) for n in range(10)]
        for number, of in enumerate(every):
            status = "FAILED_RETRYABLE" if number < 7 else "SUCCEEDED"
            await store.finish(of, lease_token=(await granted(store, of)).lease_token, status=status)
        found: list[Identity] = []
        after: str | None = None
        while True:
            page, after = await store.list(tenant=tenant, status="FAILED_RETRYABLE", limit=3, after=after)
            found += [record.identity for record in page]
            for record in page:
                grant = await store.reacquire(record.identity, owner="retry", lease=30)
                await store.finish(record.identity, lease_token=grant.lease_token, status="SUCCEEDED", result=2)
            if after is None:
                break
        assert set(found) == set(every[:7])
        assert len(found) == 7
        assert await store.list(tenant=tenant, status="FAILED_RETRYABLE") == ([], None)
        page, _ = await store.list(tenant=tenant, kind="rpc")
        assert {record.identity for record in page} == set(every)
        assert all(record.effect.status == "SUCCEEDED" for record in page)
        assert (await store.list(tenant=tenant, kind="job"))[0] == []
        assert (await store.list(tenant=tenant, older_than=60))[0] == []
        with pytest.raises(Misuse):
            await store.list(after="next")
        with pytest.raises(InvalidRequest):
            await store.list(limit=0)


@asynchronous
async def test_list_by_status_uses_its_index(database: str) -> None:
    async with await AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute(
            "INSERT INTO driftq.effects (tenant, scope_kind, scope_id, scope_detail, key, status, attempt, lease_token,"
            " lease_until, owner, ttl_ms, created_at, updated_at, expires_at) SELECT 'many', 'job', 'j', '', n::text,"
            " 'SUCCEEDED', 1, lpad('', 32, '0'), now(), 'w', 0, now(), now(), now() + '1 day'"
            " FROM generate_series(1, 20000) AS n"
        )
        await connection.execute("ANALYZE driftq.effects")
        before = await index_scans(connection)
        async with PostgresStore.connect(database) as store:
            await store.list(status="FAILED_FINAL")
        while await index_scans(connection) == before:  # noqa: ASYNC110 — the server reports its statistics later
            await asyncio.sleep(0.05)


async def index_scans(connection: AsyncConnection[Any]) -> int:
    cursor = await connection.execute(
        "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'effects_not_succeeded'"
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


@asynchronous
async def test_finish_needs_an_open_transaction_of_a_working_connection(database: str) -> None:
    async with PostgresStore.connect(database) as store:
        of = identity()
        grant = await granted(store, of)
        connection = await connected(database)
        await connection.close()
        with pytest.raises(Exception, match="closed") as raised:
            await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED", connection=connection)
        assert not isinstance(raised.value, psycopg.Error)


@needs_broker
@asynchronous
async def test_worker_keeps_its_effects_in_postgres(database: str) -> None:
    runs: list[str] = []
    events = Events()

    async def bake(message: Any, _context: Any) -> dict[str, str]:
        runs.append(message.text)
        return {"baked": message.text}

    with broker() as running:
        async with Client(running.url) as client, PostgresStore.connect(database) as store:
            scope = scopes.consume(fresh("orders"), "kitchen")
            topic = scope.fields[0][1]
            done = Identity(scope, "order-1")
            await store.finish(done, lease_token=(await granted(store, done)).lease_token, status="SUCCEEDED", result=1)
            await client.topics.create(topic)
            for number in (1, 2):
                await client.produce(topic, f"pizza {number}", idempotency_key=f"order-{number}")
            worker = Worker(client, topic, "kitchen", bake, store=store, on_event=events)
            task = asyncio.create_task(worker.run())
            await events.wait_for("completed", 2)
            worker.stop()
            await task
            effect = await store.get(Identity(scope, "order-2"))
            assert effect is not None
            assert (effect.status, effect.result) == ("SUCCEEDED", {"baked": "pizza 2"})
    assert runs == ["pizza 2"]
