"""Lost answers, and servers that are killed in the middle: nothing is executed twice, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import AsyncConnection

from driftq import Conflict, DriftqError, Execute, Identity, Replay, Retryable, scopes
from driftq.postgres import PostgresStore
from postgres_server import Server, needs_postgres
from support import asynchronous, fresh

pytestmark = needs_postgres

KEYS = 90
WORKERS_PER_KEY = 2
KILLS = 3


class Proxy:
    """Stands between a store and its server, and loses the next answer when told to."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.loses_next_answer = False
        self.lost = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        forward = asyncio.create_task(self._forward(reader, server_writer))
        while data := await server_reader.read(65_536):
            if self.loses_next_answer:
                self.loses_next_answer = False
                self.lost += 1
                break
            writer.write(data)
        writer.close()
        await forward

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()


@asynccontextmanager
async def behind_proxy(server: Server, database: str, folder: Path) -> AsyncIterator[tuple[PostgresStore, Proxy]]:
    socket = ".s.PGSQL.5432"
    parts = dict(part.split("=") for part in database.split())
    proxy = Proxy(f"{parts['host']}/{socket}")
    async with (
        await asyncio.start_unix_server(proxy.serve, folder / socket),
        PostgresStore.connect(f"host={folder} user=postgres dbname={parts['dbname']}", max_size=2) as store,
    ):
        yield store, proxy


@pytest.mark.parametrize("action", ["begin", "reacquire", "renew", "finish"])
@asynchronous
async def test_call_whose_answer_is_lost_gets_it_again(
    postgres_server: Server, database: str, tmp_path: Path, action: str
) -> None:
    async with behind_proxy(postgres_server, database, tmp_path) as (store, proxy):
        of = Identity(scopes.rpc("alice", "/charge"), fresh("key"))
        await store.get(of)
        proxy.loses_next_answer = action == "begin"
        grant = await store.begin(of, owner="w", lease=60)
        assert isinstance(grant, Execute)
        assert grant.attempt == 1
        if action == "reacquire":
            await store.finish(of, lease_token=grant.lease_token, status="FAILED_RETRYABLE")
            proxy.loses_next_answer = True
            grant = await store.reacquire(of, owner="w", lease=60)
            assert grant.attempt == 2
        proxy.loses_next_answer |= action == "renew"
        await store.renew(of, lease_token=grant.lease_token, lease=60)
        proxy.loses_next_answer |= action == "finish"
        await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED", result=action)
        assert proxy.lost == 1
        effect = await store.get(of)
        assert effect is not None
        assert (effect.status, effect.attempt, effect.result) == ("SUCCEEDED", grant.attempt, action)


@asynchronous
async def test_server_killed_in_the_middle_executes_nothing_twice_and_loses_nothing(
    postgres_server: Server, database: str
) -> None:
    tenant = fresh("crash")
    executed: Counter[str] = Counter()
    progress = asyncio.Condition()
    ended = 0
    async with await AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS charges (key text)")

    async def charge(store: PostgresStore, of: Identity, token: str) -> None:
        """Writes the user's row and the outcome in one transaction, again until it is certain."""
        while True:
            try:
                async with await AsyncConnection.connect(database) as connection:
                    await connection.execute("INSERT INTO charges VALUES (%s)", (tenant + of.key,))
                    await store.finish(of, lease_token=token, status="SUCCEEDED", result=of.key, connection=connection)
                return
            except Conflict:
                return  # It was committed, and the answer lost.
            except (DriftqError, psycopg.OperationalError):
                await asyncio.sleep(0.02)

    async def work(store: PostgresStore, of: Identity) -> None:
        nonlocal ended
        while True:
            decision = await store.begin(of, owner="w", lease=600)
            assert not isinstance(decision, Retryable)
            if isinstance(decision, Execute):
                executed[of.key] += 1
                await charge(store, of, decision.lease_token)
            elif isinstance(decision, Replay):
                assert decision.result == of.key
                break
            else:
                await asyncio.sleep(0.02)
        async with progress:
            ended += 1
            progress.notify_all()

    async def kill_in_between() -> None:
        for number in range(1, KILLS + 1):
            enough = number * KEYS * WORKERS_PER_KEY // (KILLS + 1)
            async with progress:
                await progress.wait_for(lambda enough=enough: ended >= enough)  # type: ignore[misc]
            await asyncio.to_thread(postgres_server.kill)
            await asyncio.to_thread(postgres_server.start)

    every = [Identity(scopes.tenant(), f"key-{n}", tenant) for n in range(KEYS)]
    async with PostgresStore.connect(database) as store:
        limit = asyncio.Semaphore(12)

        async def limited(of: Identity) -> None:
            async with limit:
                await work(store, of)

        killer = asyncio.create_task(kill_in_between())
        await asyncio.gather(*(limited(of) for of in every * WORKERS_PER_KEY))
        await killer
        records = []
        after = None
        while True:
            page, after = await store.list(tenant=tenant, after=after)
            records += page
            if after is None:
                break
    assert executed == Counter({of.key: 1 for of in every})
    assert {record.identity.key: record.effect.status for record in records} == {of.key: "SUCCEEDED" for of in every}
    async with await AsyncConnection.connect(database) as connection:
        cursor = await connection.execute(
            "SELECT count(*), count(DISTINCT key) FROM charges WHERE starts_with(key, %s)", (tenant,)
        )
        assert await cursor.fetchone() == (KEYS, KEYS)
