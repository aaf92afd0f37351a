"""How long begin and finish take in PostgreSQL, beside the two statements that they need.

Both use the same pool, table and indexes, in turn, so that a slow moment of the machine meets both:

    python bench/postgres.py [CONNINFO]

Without CONNINFO a server is started on a temporary folder.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from psycopg_pool import AsyncConnectionPool

from driftq import Execute, Identity, scopes
from driftq.postgres import PostgresStore

ROUNDS = 15
PAIRS_PER_ROUND = 400
CONCURRENCY = (1, 16)

INSERT = (
    "INSERT INTO driftq.effects (tenant, scope_kind, scope_id, scope_detail, key, status, attempt, lease_token,"
    " lease_until, owner, ttl_ms, created_at, updated_at, expires_at) VALUES ('default', 'job', 'raw', '', %s,"
    " 'IN_PROGRESS', 1, %s, now() + interval '30 s', 'w', 604800000, now(), now(), now() + interval '7 d')"
    " ON CONFLICT DO NOTHING RETURNING attempt"
)
UPDATE = (
    "UPDATE driftq.effects SET status = 'SUCCEEDED', result = %s::text::json, updated_at = now(),"
    " expires_at = now() + interval '7 d' WHERE tenant = 'default' AND scope_kind = 'job' AND scope_id = 'raw'"
    " AND scope_detail = '' AND key = %s AND status = 'IN_PROGRESS' AND lease_token = %s RETURNING attempt"
)
RESULT = '{"charged": 3}'

Pair = Callable[[str], Awaitable[None]]


def store_pair(store: PostgresStore) -> Pair:
    async def run(key: str) -> None:
        of = Identity(scopes.job("store"), key)
        grant = await store.begin(of, owner="w", lease=30)
        assert isinstance(grant, Execute)
        await store.finish(of, lease_token=grant.lease_token, status="SUCCEEDED", result={"charged": 3})

    return run


def raw_pair(pool: AsyncConnectionPool[Any]) -> Pair:
    async def run(key: str) -> None:
        token = uuid.uuid4().hex
        for statement, parameters in ((INSERT, (key, token)), (UPDATE, (RESULT, key, token))):
            # As the store does: nothing is committed where connections commit by themselves.
            connection = await pool.getconn()
            try:
                cursor = await connection.execute(statement, parameters)
                assert await cursor.fetchone() == (1,)
            finally:
                await pool.putconn(connection)

    return run


async def timed(pair: Pair, concurrency: int) -> float:
    """Seconds per pair of one worker."""
    keys = [uuid.uuid4().hex for _ in range(PAIRS_PER_ROUND)]

    async def worker(part: list[str]) -> None:
        for key in part:
            await pair(key)

    started = time.perf_counter()
    await asyncio.gather(*(worker(keys[n::concurrency]) for n in range(concurrency)))
    return (time.perf_counter() - started) / PAIRS_PER_ROUND


async def measure(conninfo: str) -> None:
    pool = AsyncConnectionPool(conninfo, min_size=16, max_size=16, open=False, kwargs={"autocommit": True})
    async with pool:
        store = PostgresStore(pool)
        await store.migrate()
        pairs = {"two statements": raw_pair(pool), "begin + finish": store_pair(store)}
        for concurrency in CONCURRENCY:
            times: dict[str, list[float]] = {name: [] for name in pairs}
            for number in range(ROUNDS + 1):
                for name, pair in pairs.items():
                    taken = await timed(pair, concurrency)
                    if number:  # The first round warms up.
                        times[name].append(taken)
            medians = {name: statistics.median(taken) for name, taken in times.items()}
            raw, ours = medians.values()
            for name, median in medians.items():
                print(f"{concurrency:2} at a time: {name} {median * 1e6:7.0f} µs, {1 / median:6.0f}/s")
            ratios = sorted(ours / raw for raw, ours in zip(*times.values(), strict=True))
            print(f"{concurrency:2} at a time: {ours / raw:.2f} times ({ratios[2]:.2f} to {ratios[-3]:.2f})")


def main() -> None:
    with ExitStack() as stack:
        if len(sys.argv) > 1:
            conninfo = sys.argv[1]
        else:
            sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
            from postgres_server import postgres

            conninfo = stack.enter_context(postgres()).create_database()
        asyncio.run(measure(conninfo))


if __name__ == "__main__":
    main()
