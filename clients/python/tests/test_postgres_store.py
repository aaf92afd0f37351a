"""The store over PostgreSQL passes the cases of every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from driftq import Store
from driftq.postgres import PostgresStore
from postgres_server import Server, needs_postgres
from store_cases import StoreCases


@needs_postgres
class TestPostgresStore(StoreCases):
    @pytest.fixture(autouse=True)
    def _use(self, postgres_server: Server, database: str) -> None:
        self._server = postgres_server
        self._database = database

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with PostgresStore.connect(self._database) as store:
            yield store

    def crash(self) -> None:
        self._server.kill()
        self._server.start()
