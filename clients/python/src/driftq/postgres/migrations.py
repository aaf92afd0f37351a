"""The schema of the store: numbered migrations, applied once each, in order, by one process at a time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from driftq.errors import ProtocolError

LOCK_KEY = 0x6472_6966_7471
"""Of the advisory lock under which migrations are applied: "driftq" in ASCII. The same in every language."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A step of the schema."""

    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """What a database remembers of the text it was given."""
        return hashlib.sha256(self.sql.encode("utf-8")).hexdigest()


def migrations() -> list[Migration]:
    """All migrations in order. The first, number 0, has the table that the others are recorded in."""
    folder = files("driftq.postgres").joinpath("migrations")
    found = []
    for file in folder.iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.version)
    assert [migration.version for migration in found] == list(range(len(found))), "migrations are numbered without gaps"
    return found


def schema() -> str:
    """The whole schema as one script for an empty database: what all migrations make, and the record of them."""
    first, *others = migrations()
    parts = [
        "-- The schema of the store, for an empty database: psql -f schema.sql. Made of the migrations by\n"
        "-- `python -m driftq.postgres schema`; `migrate` leaves a database that has it as it is.\n\nBEGIN;\n"
        f"SELECT pg_advisory_xact_lock({LOCK_KEY});\n",
        first.sql,
    ]
    for migration in others:
        parts.append(migration.sql)
        parts.append(
            "INSERT INTO driftq.migrations (version, name, sha256)\n"
            f"    VALUES ({migration.version}, '{migration.name}',\n        '{migration.sha256}');\n"
        )
    parts.append("COMMIT;\n")
    return "\n".join(parts)


async def migrate(connection: AsyncConnection, *, up_to: int | None = None) -> list[int]:
    """Applies the migrations that the database lacks, in one transaction; returns their numbers.

    Processes that start together wait for each other. A database with newer migrations than this client knows is left
    as it is: migrations keep what older clients call. One with another text of a migration is a `ProtocolError`.
    """
    first, *others = migrations()
    applied: list[int] = []
    async with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        await cursor.execute(first.sql.encode("utf-8"))
        await cursor.execute("SELECT version, sha256 FROM driftq.migrations")
        present: dict[int, str] = dict(await cursor.fetchall())
        for migration in others:
            if up_to is not None and migration.version > up_to:
                break
            known = present.get(migration.version)
            if known is None:
                await cursor.execute(migration.sql.encode("utf-8"))
                await cursor.execute(
                    "INSERT INTO driftq.migrations (version, name, sha256) VALUES (%s, %s, %s)",
                    (migration.version, migration.name, migration.sha256),
                )
                applied.append(migration.version)
            elif known != migration.sha256:
                raise ProtocolError(
                    f"the database has migration {migration.version} ({migration.name}) with another text: expected "
                    f"SHA-256 {migration.sha256}, found {known}"
                )
    return applied
