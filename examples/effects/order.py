"""Messages out of order: each carries the version of its entity, and an older one changes nothing."""

from __future__ import annotations

import sqlite3

from driftq import Client, Context, Message, Retry, idempotency_key
from waiting import work_until

database = sqlite3.connect(":memory:", isolation_level=None)
database.execute("CREATE TABLE prices (item TEXT PRIMARY KEY, cents INTEGER NOT NULL, version INTEGER NOT NULL)")
handled: list[int] = []


async def set_price(message: Message, _context: Context) -> None:
    """Stores a price, unless a newer one is there."""
    price = message.json()
    if price["version"] == 1 and 3 not in handled:
        # Stands for a failure that lasts until the later messages have been handled.
        raise Retry("the database is busy", delay=0.05)
    database.execute(
        "INSERT INTO prices (item, cents, version) VALUES (:item, :cents, :version)"
        " ON CONFLICT (item) DO UPDATE SET cents = excluded.cents, version = excluded.version"
        " WHERE prices.version < excluded.version",
        price,
    )
    handled.append(price["version"])


async def main(client: Client) -> None:
    """Runs the example."""
    await client.topics.create("prices")
    for version, cents in ((1, 900), (2, 950), (3, 990)):
        price = {"item": "funghi", "cents": cents, "version": version}
        once = idempotency_key("price", "funghi", version)
        # One key, so one partition; with `per_key_order` a worker handles one of them at a time.
        await client.produce("prices", json=price, key="funghi", idempotency_key=once)
    await work_until(client, "prices", set_price, ended=3, per_key_order=True)
    assert handled == [2, 3, 1], "the retried message is the last one"
    assert database.execute("SELECT cents, version FROM prices").fetchall() == [(990, 3)]
