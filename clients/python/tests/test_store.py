"""The broker's store passes the cases of every store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from driftq import Client, Store
from driftq.testing import Broker, broker
from store_cases import StoreCases
from support import needs_broker


@pytest.fixture(scope="module")
def durable_broker() -> Iterator[Broker]:
    with broker(keep_log=True) as running:
        yield running


@needs_broker
class TestBrokerStore(StoreCases):
    @pytest.fixture(autouse=True)
    def _use(self, durable_broker: Broker) -> None:
        self._broker = durable_broker

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with Client(self._broker.url) as client:
            yield client.effects

    def crash(self) -> None:
        self._broker.kill()
        self._broker.start()
