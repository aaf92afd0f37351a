"""Makes payments while workers, broker and database are killed, then checks that each was made once.

python examples/payments/run.py --seconds 20 --seed 1

Ends with status 0 if everything holds, 1 if it does not, 2 if the example cannot be run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import psycopg
from audit import Books, left_to_do, read, violations
from cluster import Cluster, cluster, inject
from driftq import Client, Execute, Identity, idempotency_key, scopes
from driftq.postgres import PostgresStore
from driftq.testing import NoBroker
from ledger import RECEIPTS, Command
from plants import PLANTS
from service import TOPIC
from temporary_postgres import NoPostgres

ACCOUNTS = 20
OPENED_WITH_CENTS = 10_000
PAYMENT_CENTS_MAX = 4_000
PARTITIONS = 4
OLD_EFFECTS = 200
"""Effects of the past, which the sweeper has to remove."""

RESENT = 0.15
"""The share of payments that a producer sends again with the same key: the broker stores one message."""
ORDERED_ELSEWHERE = 0.25
"""The share of payments that come again by another gateway, with a key of its own: only the service can know."""
CONTRADICTING = 3
"""Payments that are ordered again with another amount, after they have ended."""
LATE_S = (0.0, 4.0)
STALLED_S = 30.0
"""Without progress for so long, what is left will never be done."""


def orders(seed: int) -> Iterator[Command]:
    """Payments without end, the same for the same seed."""
    draw = random.Random(f"orders {seed}")
    names = [f"account-{number:02}" for number in range(ACCOUNTS)]
    number = 0
    while True:
        payer, payee = draw.sample(names, 2)
        yield Command(f"p-{number}", payer, payee, draw.randint(1, PAYMENT_CENTS_MAX))
        number += 1


async def prepare(database: str, client: Client) -> dict[str, int]:
    """Makes tables, accounts and topics; returns what each account has."""
    opened = {f"account-{number:02}": OPENED_WITH_CENTS for number in range(ACCOUNTS)}
    async with await psycopg.AsyncConnection.connect(database) as connection:
        await connection.execute(Path(__file__).with_name("schema.sql").read_bytes())
        async with connection.cursor() as cursor:
            await cursor.executemany("INSERT INTO accounts (id, cents) VALUES (%s, %s)", list(opened.items()))
    async with PostgresStore.connect(database) as store:
        await store.migrate()
        for number in range(OLD_EFFECTS):
            old = Identity(scopes.job("yesterday"), f"{number}")
            grant = await store.begin(old, owner="yesterday", ttl=0.0)
            assert isinstance(grant, Execute), "the database is new"
            await store.finish(old, lease_token=grant.lease_token, status="SUCCEEDED")
    await client.topics.create(TOPIC, partitions=PARTITIONS)
    await client.topics.create(RECEIPTS)
    return opened


async def produce(client: Client, seed: int, seconds: float, rate: float) -> tuple[list[Command], int]:
    """Orders payments for so long, some of them several times; returns them, and how many messages were sent."""
    draw = random.Random(f"duplicates {seed}")
    ordered: list[Command] = []
    sending: list[asyncio.Task[None]] = []

    async def send(command: Command, gateway: str, after: float) -> None:
        await asyncio.sleep(after)
        key = idempotency_key(gateway, command.payment)
        await client.produce(TOPIC, json=command.as_json(), key=command.payer, idempotency_key=key)

    started = time.monotonic()
    for command in orders(seed):
        due = started + len(ordered) / rate
        if due > started + seconds:
            break
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        ordered.append(command)
        sending.append(asyncio.create_task(send(command, "gateway-1", 0)))
        if draw.random() < RESENT:
            sending.append(asyncio.create_task(send(command, "gateway-1", draw.uniform(*LATE_S))))
        if draw.random() < ORDERED_ELSEWHERE:
            sending.append(asyncio.create_task(send(command, "gateway-2", draw.uniform(*LATE_S))))
    await asyncio.gather(*sending)
    return ordered, len(sending)


async def contradict(client: Client, ordered: list[Command]) -> list[Command]:
    """Orders payments again with another amount. The service must refuse them."""
    contradicting = [replace(command, cents=command.cents + 1) for command in ordered[:CONTRADICTING]]
    for command in contradicting:
        key = idempotency_key("gateway-3", command.payment)
        await client.produce(TOPIC, json=command.as_json(), key=command.payer, idempotency_key=key)
    return contradicting


async def settled(database: str, client: Client) -> bool:
    """Waits until nothing is left to do; false if that makes no progress."""
    least = None
    while left := await left_to_do(database, client):
        if least is None or left < least:
            least, give_up_at = left, time.monotonic() + STALLED_S
        if time.monotonic() > give_up_at:
            return False
        await asyncio.sleep(0.1)
    return True


async def play(parts: Cluster, arguments: argparse.Namespace) -> int:
    """One run over running servers."""
    database = parts.database.conninfo
    async with Client(parts.broker.url) as client:
        opened = await prepare(database, client)
        for worker in parts.workers:
            worker.start()
            await asyncio.to_thread(worker.wait_until_ready)
        (ordered, sent), hit = await asyncio.gather(
            produce(client, arguments.seed, arguments.seconds, arguments.rate),
            inject(parts, arguments.seed, arguments.seconds),
        )
        is_done = await settled(database, client)
        contradicting = await contradict(client, ordered)
        is_done = is_done and await settled(database, client)
        for worker in parts.workers:
            worker.stop()
        books = await read(database, client)
    found = violations(books, opened, ordered, contradicting)
    if not is_done:
        found.insert(0, f"something is left to do, without progress for {STALLED_S:.0f} s")
    show(books, ordered, sent, hit)
    for violation in found:
        print(f"DOES NOT HOLD: {violation}")
    if not found:
        print("holds: each payment was made once or declined, and no money was created or destroyed")
    return 1 if found else 0


def show(books: Books, ordered: list[Command], sent: int, hit: Counter[str]) -> None:
    """Prints what happened."""
    ended = Counter(books.statuses.values())
    kills = ", ".join(f"{count} x {target}" for target, count in sorted(hit.items())) or "nothing"
    print(f"{len(ordered)} payments in {sent} messages; killed: {kills}")
    print(
        f"{ended['SUCCEEDED']} made, {ended['FAILED_FINAL']} declined, {books.retried} with more than one attempt, "
        f"{sum(books.receipts.values())} receipts"
    )


def main() -> int:
    """Runs the example."""
    parser = argparse.ArgumentParser(description="payments that are made once, whatever is killed")
    parser.add_argument("--seconds", type=float, default=20, help="how long payments are ordered and servers killed")
    parser.add_argument("--seed", type=int, default=1, help="of payments, duplicates and faults")
    parser.add_argument("--rate", type=float, default=60, help="payments per second")
    parser.add_argument("--plant", choices=PLANTS, help="make a mistake on purpose, which the audit must find")
    arguments = parser.parse_args()
    if arguments.plant:
        print(f"planted: {PLANTS[arguments.plant]}")
    try:
        with cluster(arguments.plant) as parts:
            return asyncio.run(play(parts, arguments))
    except (NoBroker, NoPostgres) as error:
        print(f"cannot run: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
