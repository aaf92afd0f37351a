"""The transactional outbox: rows, a message and the outcome of an effect in one transaction of PostgreSQL."""

from __future__ import annotations

from typing import Any

from driftq import Client, Execute, Identity, Replay, idempotency_key, scopes
from driftq.postgres import PostgresStore
from psycopg_pool import AsyncConnectionPool

SCHEMA = """
    CREATE TABLE orders (id text PRIMARY KEY, cents bigint NOT NULL);
    CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, value json NOT NULL);
"""

Pool = AsyncConnectionPool[Any]


async def place_order(pool: Pool, store: PostgresStore, key: str, cents: int) -> Any:
    """Stores an order and what others are to learn of it, once per key."""
    order = Identity(scopes.rpc("shop", "POST /orders"), key)
    decision = await store.begin(order, owner="orders-1")
    if isinstance(decision, Replay):
        return decision.result
    assert isinstance(decision, Execute), "see the section on services for the other decisions"
    result = {"order": key, "cents": cents}
    async with pool.connection() as connection, connection.transaction():
        await connection.execute("INSERT INTO orders (id, cents) VALUES (%s, %s)", (key, cents))
        await connection.execute(
            "INSERT INTO outbox (topic, value) VALUES ('placed', json_build_object('order', %s::text))", (key,)
        )
        await store.finish(
            order, lease_token=decision.lease_token, status="SUCCEEDED", result=result, connection=connection
        )
    return result


async def relay(pool: Pool, client: Client) -> int:
    """Produces what committed transactions have left; returns how many messages. Run it again and again."""
    async with pool.connection() as connection, connection.transaction():
        rows = await (
            await connection.execute("SELECT id, topic, value FROM outbox ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED")
        ).fetchall()
        for number, topic, value in rows:
            # A crash before the commit produces it again, with this key: a duplicate to the broker.
            await client.produce(topic, json=value, idempotency_key=idempotency_key("outbox", number))
        await connection.execute("DELETE FROM outbox WHERE id = ANY(%s)", ([row[0] for row in rows],))
    return len(rows)


async def main(client: Client, conninfo: str) -> None:
    """Runs the example over a new database."""
    await client.topics.create("placed")
    async with AsyncConnectionPool(conninfo, min_size=1, open=False) as pool:
        store = PostgresStore(pool)
        await store.migrate()
        async with pool.connection() as connection:
            await connection.execute(SCHEMA)
        for _ in range(2):
            assert await place_order(pool, store, "o-7", 950) == {"order": "o-7", "cents": 950}
        await die_after_producing(pool, client)
        assert await relay(pool, client) == 1
        assert await relay(pool, client) == 0
        async with pool.connection() as connection:
            orders = await (await connection.execute("SELECT id, cents FROM orders")).fetchall()
    assert orders == [("o-7", 950)]
    assert [message.json() for message in await client.peek("placed", partition=0)] == [{"order": "o-7"}]


async def die_after_producing(pool: Pool, client: Client) -> None:
    """A relay that ends between produce and commit."""
    async with pool.connection() as connection:
        row = await (await connection.execute("SELECT id, topic, value FROM outbox")).fetchone()
        assert row is not None
        await client.produce(row[1], json=row[2], idempotency_key=idempotency_key("outbox", row[0]))
        await connection.rollback()
