"""A request sent many times at once, or again after a kill, has one effect and one answer; over both stores.

Starts brokers, a PostgreSQL server and the service itself: python -m pytest examples/rpc
"""

from __future__ import annotations

import asyncio
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from driftq import Client
from driftq.testing import Broker, broker, find_driftqd
from idempotent import Answer, Call, Idempotency, Rejected
from temporary_postgres import TemporaryPostgres, find_programs, temporary_postgres

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

FOLDER = Path(__file__).parent
TIMEOUT_S = 60.0
COPIES = 20
LEASE_S = 2

pytestmark = pytest.mark.skipif(find_driftqd() is None, reason="no driftqd found: set DRIFTQD or build it")
needs_postgres = pytest.mark.skipif(find_programs() is None, reason="needs PostgreSQL (initdb, pg_ctl)")


class Service:
    """The service, in a process of its own."""

    def __init__(self, settings: dict[str, str], provider_s: float) -> None:
        environment = {**os.environ, **settings, "PROVIDER_S": f"{provider_s}", "LEASE_S": f"{LEASE_S}"}
        command = [sys.executable, "-m", "uvicorn", "--app-dir", str(FOLDER), "fastapi_app:app", "--port", "0"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.charging = 0
        threading.Thread(target=self._read, daemon=True).start()
        self.url = self.wait_for(r"running on (http://[^ ]+)")[1]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.charging += line.startswith("charging ")
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits for a line of its output."""
        seen = []
        while (line := self._lines.get(timeout=TIMEOUT_S)) is not None:
            if found := re.search(pattern, line):
                return found
            seen.append(line)
        raise AssertionError("".join(seen))

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()


class Place:
    """Where a service charges, and how many charges there are."""

    def __init__(self, settings: dict[str, str], charges: Callable[[], Any], crash: Callable[[], None]) -> None:
        self._settings = settings
        self.charges = charges
        self.crash = crash

    @contextmanager
    def service(self, provider_s: float = 0) -> Iterator[Service]:
        """A running service."""
        running = Service(self._settings, provider_s)
        try:
            yield running
        finally:
            running.kill()


def over_broker(server: Broker) -> Place:
    async def charges() -> int:
        async with Client(server.url) as client:
            return len(await client.peek("charges", partition=0))

    def crash() -> None:
        server.kill()
        server.start()

    return Place({"DRIFTQ_URL": server.url}, lambda: asyncio.run(charges()), crash)


def over_postgres(server: TemporaryPostgres) -> Place:
    def charges() -> int:
        with psycopg.connect(server.conninfo) as connection:
            row = connection.execute("SELECT count(*) FROM charges").fetchone()
            assert row is not None
            return int(row[0])

    def crash() -> None:
        server.crash()
        server.start()

    return Place({"DATABASE": server.conninfo}, charges, crash)


@pytest.fixture(params=["broker", pytest.param("postgres", marks=needs_postgres)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "broker":
        with broker(keep_log=True) as server:
            yield over_broker(server)
    else:
        with temporary_postgres() as server:
            yield over_postgres(server)


BODY = {"customer": "customer-7", "cents": 950}
Reply = tuple[int, Any, dict[str, str]]


async def post(url: str, key: str | None, body: Any = BODY, caller: str = "shop") -> Reply:
    headers = {"X-Caller": caller} | ({"Idempotency-Key": key} if key else {})
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as session,
        session.post(f"{url}/charges", json=body, headers=headers) as response,
    ):
        return response.status, await response.json(), dict(response.headers)


async def until_answered(url: str, key: str) -> tuple[Reply, list[int]]:
    """Sends a request as a good caller does: again when told to, after the pause asked for."""
    refused: list[int] = []
    give_up_at = time.monotonic() + TIMEOUT_S
    while True:
        reply = await post(url, key)
        if reply[0] not in (409, 503):
            return reply, refused
        refused.append(reply[0])
        assert time.monotonic() < give_up_at, refused
        await asyncio.sleep(float(reply[2]["Retry-After"]))


def test_copies_sent_at_once_have_one_effect_and_one_answer(place: Place) -> None:
    async def copies(url: str) -> list[tuple[Reply, list[int]]]:
        return await asyncio.gather(*(until_answered(url, "order-1") for _ in range(COPIES)))

    with place.service(provider_s=0.3) as service:
        answered = asyncio.run(copies(service.url))
        assert [(status, body) for (status, body, _), _ in answered] == [(201, {"charged": 950})] * COPIES
        assert sum("idempotent-replayed" not in headers for (_, _, headers), _ in answered) == 1
        assert {status for _, refused in answered for status in refused} == {409}
        assert service.charging == 1
    assert place.charges() == 1


def test_request_sent_again_after_its_server_was_killed_has_one_effect(place: Place) -> None:
    async def killed(service: Service) -> None:
        request = asyncio.create_task(post(service.url, "order-2"))
        await asyncio.to_thread(service.wait_for, "^charged for order-2")
        service.kill()
        with pytest.raises(aiohttp.ClientError):
            await request

    with place.service(provider_s=60) as service:
        asyncio.run(killed(service))
    place.crash()
    with place.service() as service:
        (status, body, _), refused = asyncio.run(until_answered(service.url, "order-2"))
        assert (status, body) == (201, {"charged": 950})
        assert set(refused) <= {409}
        assert service.charging == 1
        (status, body, headers), _ = asyncio.run(until_answered(service.url, "order-2"))
        assert (status, body, headers["idempotent-replayed"]) == (201, {"charged": 950}, "true")
        assert service.charging == 1
    assert place.charges() == 1


def test_key_belongs_to_one_request_of_one_caller(place: Place) -> None:
    async def several(url: str) -> list[int]:
        other = {"customer": "customer-7", "cents": 951}
        reordered = {"cents": 950, "customer": "customer-7"}
        return [
            (await post(url, "order-3"))[0],
            (await post(url, "order-3", other))[0],
            (await post(url, "order-3", reordered))[0],
            (await post(url, "order-3", {"customer": "customer-8", "cents": 950}, caller="market"))[0],
            (await post(url, None))[0],
            (await post(url, "x" * 300))[0],
        ]

    with place.service() as service:
        assert asyncio.run(several(service.url)) == [201, 422, 201, 201, 400, 400]
    assert place.charges() == 2


@asynccontextmanager
async def idempotency(lease: float = 30) -> AsyncIterator[tuple[Idempotency, Client]]:
    with broker() as server:
        async with Client(server.url, retry_for=1) as client:
            yield Idempotency(client.effects, owner="test", lease=lease), client


def test_failed_request_is_run_again_by_its_next_copy_and_a_rejected_one_is_not() -> None:
    attempts = []

    async def handler(body: Any, call: Call) -> Answer:
        attempts.append(call.grant.attempt)
        if body == "no":
            raise Rejected(402, "no money")
        if call.grant.attempt == 1:
            raise ConnectionError("the bank is busy")
        return Answer(201, {"charged": body})

    async def check() -> None:
        async with idempotency() as (once, _):
            failed = await once.answer("shop", "POST /charges", "a", 3, handler)
            assert (failed.status, failed.headers) == (503, {"Retry-After": "1"})
            assert await once.answer("shop", "POST /charges", "a", 3, handler) == Answer(201, {"charged": 3})
            for _ in range(2):
                rejected = await once.answer("shop", "POST /charges", "b", "no", handler)
                assert (rejected.status, rejected.body) == (402, {"error": "no money"})
        assert attempts == [1, 2, 1]

    asyncio.run(check())


def test_lease_is_renewed_while_the_handler_runs_and_its_loss_cancels_the_handler() -> None:
    async def check() -> None:
        async with idempotency(lease=0.3) as (once, client):

            async def slow(_: Any, call: Call) -> Answer:
                first = await client.effects.get(call.identity)
                # The heartbeat is the store's to see alone.
                while (now := await client.effects.get(call.identity)) == first:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                assert now is not None
                assert await client.effects.forget(call.identity)
                await asyncio.Event().wait()
                raise AssertionError("an event that is never set")

            answer = await asyncio.wait_for(once.answer("shop", "POST /charges", "a", 1, slow), TIMEOUT_S)
            assert answer.status == 409

    asyncio.run(check())


def test_request_is_not_run_where_the_store_cannot_be_reached() -> None:
    async def never(_: Any, __: Call) -> Answer:
        raise AssertionError("run without a grant")

    async def check() -> None:
        with broker() as server:
            async with Client(server.url, retry_for=0.2) as client:
                await client.server.version()
                server.kill()
                answer = await Idempotency(client.effects, owner="test").answer("shop", "m", "a", 1, never)
                assert answer.status == 503
                assert "Retry-After" in answer.headers

    asyncio.run(check())
