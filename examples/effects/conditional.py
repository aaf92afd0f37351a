"""Conditional updates: a change that says from which state it starts can be repeated without harm."""

from __future__ import annotations

import sqlite3

from driftq import Client, Context, Message, Permanent
from waiting import work_until

database = sqlite3.connect(":memory:", isolation_level=None)
database.executescript("""
    CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT NOT NULL, address TEXT, version INTEGER NOT NULL,
                         changed_by TEXT);
    INSERT INTO orders VALUES ('o-7', 'paid', NULL, 1, NULL);
""")


async def ship(message: Message, _context: Context) -> None:
    """Ships an order that is paid. One that is shipped stays as it is."""
    database.execute(
        "UPDATE orders SET status = 'shipped', version = version + 1 WHERE id = ? AND status = 'paid'",
        (message.json()["order"],),
    )


async def change_address(message: Message, _context: Context) -> None:
    """Changes the version that the caller has seen; refuses if the order has changed since."""
    change = message.json()
    changed = database.execute(
        "UPDATE orders SET address = :address, version = version + 1, changed_by = :change"
        " WHERE id = :order AND version = :seen_version",
        change,
    )
    if changed.rowcount == 1:
        return
    (by,) = database.execute("SELECT changed_by FROM orders WHERE id = :order", change).fetchone()
    # Its own change, made by an attempt that did not come to its end, is no conflict.
    if by != change["change"]:
        raise Permanent(f"the order is not at version {change['seen_version']} any more")


async def main(client: Client) -> None:
    """Runs the example, without the store of effects: the messages have no keys, and each handler runs twice."""
    await client.topics.create("shipments")
    await client.topics.create("addresses")
    for _ in range(2):
        await client.produce("shipments", json={"order": "o-7"})
    await work_until(client, "shipments", ship, ended=2)
    assert database.execute("SELECT status, version FROM orders").fetchall() == [("shipped", 2)]
    first = {"order": "o-7", "address": "Main Street 1", "seen_version": 2, "change": "a-1"}
    for change in (first, first, {**first, "address": "Main Street 2", "change": "a-2"}):
        await client.produce("addresses", json=change)
    await work_until(client, "addresses", change_address, ended=3, concurrency=1)
    assert database.execute("SELECT address, version FROM orders").fetchall() == [("Main Street 1", 3)]
    (refused,) = await client.dlq.peek("addresses", partition=0)
    assert refused.json()["change"] == "a-2"
