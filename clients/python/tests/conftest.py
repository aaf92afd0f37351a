"""Fixtures of several test modules."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftq.postgres import PostgresStore
from postgres_server import Server, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A PostgreSQL server for the tests of a session."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="module")
def database(postgres_server: Server) -> str:
    """How to connect to a database with the schema of the store, one per module."""
    conninfo = postgres_server.create_database()

    async def migrated() -> None:
        async with PostgresStore.connect(conninfo) as store:
            await store.migrate()

    asyncio.run(migrated())
    return conninfo


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
