"""The schema: one text for all, applied once, older databases brought up to date."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg import AsyncConnection

from driftq import Execute, Identity, Misuse, ProtocolError, Replay, Unavailable, scopes
from driftq.postgres import PostgresStore, migrate, migrations, schema
from postgres_server import Server, needs_postgres
from support import asynchronous

FOLDER = Path(__file__).parents[1] / "src" / "driftq" / "postgres"


def test_schema_file_is_what_the_migrations_make() -> None:
    assert (FOLDER / "schema.sql").read_text(encoding="utf-8") == schema(), "run python -m driftq.postgres schema"


def without_times(dump: str) -> list[str]:
    """A dump without what differs between two of the same: the times of migrations, and pg_dump's own key."""
    lines = (line for line in dump.splitlines() if not line.startswith(("\\restrict", "\\unrestrict")))
    return [line.rpartition(", ")[0] if line.startswith("INSERT INTO driftq.migrations") else line for line in lines]


@needs_postgres
@asynchronous
async def test_schema_file_and_migrations_make_the_same_database(postgres_server: Server) -> None:
    by_file, by_migrations, by_step = (postgres_server.create_database() for _ in range(3))
    async with await AsyncConnection.connect(by_file, autocommit=True) as connection:
        await connection.execute((FOLDER / "schema.sql").read_bytes())
        assert await migrate(connection) == []
    async with await AsyncConnection.connect(by_migrations, autocommit=True) as connection:
        assert await migrate(connection) == [1, 2]
        assert await migrate(connection) == []
    async with await AsyncConnection.connect(by_step, autocommit=True) as connection:
        assert await migrate(connection, up_to=1) == [1]
        assert await migrate(connection) == [2]
    dumps = [without_times(postgres_server.dump(database)) for database in (by_file, by_migrations, by_step)]
    assert dumps[0] == dumps[1] == dumps[2]
    assert any("effects_not_succeeded" in line for line in dumps[0])


@needs_postgres
@asynchronous
async def test_effects_outlast_a_migration(postgres_server: Server) -> None:
    database = postgres_server.create_database()
    async with await AsyncConnection.connect(database) as connection:
        await migrate(connection, up_to=1)
    of = Identity(scopes.tenant(), "k")
    async with PostgresStore.connect(database) as store:
        grant = await store.begin(of, owner="w")
        assert isinstance(grant, Execute)
        with pytest.raises(ProtocolError, match="migrate"):
            await store.sweep()
        assert await store.migrate() == [2]
        await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED")
        assert await store.sweep() == 0
        assert isinstance(await store.begin(of, owner="w"), Replay)


@needs_postgres
@asynchronous
async def test_processes_that_start_together_migrate_once(postgres_server: Server) -> None:
    database = postgres_server.create_database()
    connections = [await AsyncConnection.connect(database) for _ in range(8)]
    applied = await asyncio.gather(*(migrate(connection) for connection in connections))
    assert sorted(applied) == [[]] * 7 + [[1, 2]]
    for connection in connections:
        await connection.close()


@needs_postgres
@asynchronous
async def test_other_text_of_a_migration_is_told_and_a_newer_database_left_alone(postgres_server: Server) -> None:
    database = postgres_server.create_database()
    async with await AsyncConnection.connect(database, autocommit=True) as connection:
        await migrate(connection)
        newer = len(migrations())
        await connection.execute(
            "INSERT INTO driftq.migrations (version, name, sha256) VALUES (%s, 'later', '')", (newer,)
        )
        assert await migrate(connection) == []
        await connection.execute("UPDATE driftq.migrations SET sha256 = 'x' WHERE version = 2")
        with pytest.raises(ProtocolError, match=r"migration 2 \(maintenance\)"):
            await migrate(connection)


@needs_postgres
@asynchronous
async def test_database_without_the_schema_is_told(postgres_server: Server) -> None:
    async with PostgresStore.connect(postgres_server.create_database()) as store:
        with pytest.raises(ProtocolError, match=r"PostgresStore\.migrate"):
            await store.get(Identity(scopes.tenant(), "k"))


@needs_postgres
@asynchronous
async def test_program_migrates_a_database(postgres_server: Server) -> None:
    database = postgres_server.create_database()
    for expected in (b"applied: 1, 2\n", b"applied: nothing\n"):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "driftq.postgres", "migrate", database, stdout=asyncio.subprocess.PIPE
        )
        assert (await process.communicate())[0] == expected
        assert process.returncode == 0


@asynchronous
async def test_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    store = PostgresStore.connect(f"host={tmp_path} user=nobody", timeout=0.5, retry_for=0.2)
    async with store:
        with pytest.raises(Unavailable) as raised:
            await store.get(Identity(scopes.tenant(), "k"))
        assert raised.value.retry_is_safe
    with pytest.raises(Misuse):
        await store.get(Identity(scopes.tenant(), "k"))


def test_import_without_psycopg_says_what_to_install() -> None:
    code = "import sys; sys.modules['psycopg'] = None\nimport driftq.postgres"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "driftq[postgres]" in done.stderr
