"""What must hold when all payments have been made, whatever happened meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from driftq import Client
from driftq.postgres import PostgresStore
from ledger import RECEIPTS, Command
from service import GROUP, TOPIC

PEEK_LIMIT = 500
SHOWN_MAX = 5
"""How many of the payments concerned a violation names."""


@dataclass(frozen=True)
class Books:
    """All that the service has left."""

    accounts: dict[str, tuple[int, int]]
    """Cents and version by account."""
    transfers: list[Command]
    statuses: dict[str, str]
    """How each payment's effect has ended, by its key."""
    retried: int
    """Effects that needed more than one grant."""
    receipts: Counter[str]
    dead_letters: list[Command]
    expired_rows: int


async def read(database: str, client: Client) -> Books:
    """Reads the database, the store and the topics."""
    async with (
        await psycopg.AsyncConnection.connect(database) as connection,
        PostgresStore.connect(database) as store,
    ):
        accounts = await _rows(connection, "SELECT id, cents, version FROM accounts")
        transfers = await _rows(connection, "SELECT payment, payer, payee, cents FROM transfers")
        ((expired_rows,),) = await _rows(
            connection, "SELECT count(*) FROM driftq.effects WHERE expires_at <= clock_timestamp()"
        )
        records = []
        after = None
        while True:
            page, after = await store.list(kind="consume", limit=1000, after=after)
            records += page
            if after is None:
                break
    receipts: Counter[str] = Counter()
    async for message in _messages(client, RECEIPTS):
        receipts[message.json()["payment"]] += 1
    dead = []
    if f"dlq.{TOPIC}" in await client.topics.list():
        dead = [Command.of(message.json()) async for message in _messages(client, f"dlq.{TOPIC}")]
    return Books(
        accounts={name: (cents, version) for name, cents, version in accounts},
        transfers=[Command(*row) for row in transfers],
        statuses={record.identity.key: record.effect.status for record in records},
        retried=sum(record.effect.attempt > 1 for record in records),
        receipts=receipts,
        dead_letters=dead,
        expired_rows=expired_rows,
    )


def violations(
    books: Books, opened: dict[str, int], ordered: list[Command], contradicting: Sequence[Command] = ()
) -> list[str]:
    """What does not hold.

    `opened` are the cents that each account had at first, `ordered` the payments, each once, and `contradicting` those
    that were ordered again with another amount.
    """
    found = []
    money, money_at_first = sum(cents for cents, _ in books.accounts.values()), sum(opened.values())
    if money != money_at_first:
        found.append(f"there were {money_at_first} cents, and there are {money}")
    expected, changes = dict(opened), Counter[str]()
    for transfer in books.transfers:
        expected[transfer.payer] -= transfer.cents
        expected[transfer.payee] += transfer.cents
        changes.update((transfer.payer, transfer.payee))
    found += _named("balances that are not those of the transfers", [
        name for name, (cents, _) in books.accounts.items() if cents != expected[name]
    ])  # fmt: skip
    found += _named("versions that do not count the transfers", [
        name for name, (_, version) in books.accounts.items() if version != changes[name]
    ])  # fmt: skip
    made = Counter(transfer.payment for transfer in books.transfers)
    found += _named("payments made more than once", [name for name, count in made.items() if count > 1])
    found += _named("transfers that are not as ordered", sorted(
        transfer.payment for transfer in set(books.transfers) - set(ordered)
    ))  # fmt: skip
    status_of = {command.payment: books.statuses.get(command.key, "unknown") for command in ordered}
    found += _named("payments that have not ended", [
        name for name, status in status_of.items() if status not in ("SUCCEEDED", "FAILED_FINAL")
    ])  # fmt: skip
    found += _named("payments whose status and transfer disagree", [
        name for name, status in status_of.items() if (status == "SUCCEEDED") != (made[name] > 0)
    ])  # fmt: skip
    found += _named("payments without exactly one receipt", [
        name for name in made if books.receipts[name] != 1
    ])  # fmt: skip
    found += _named("receipts of payments that were not made", [name for name in books.receipts if made[name] == 0])
    unexpected = Counter(books.dead_letters)
    unexpected.subtract(contradicting)
    found += _named("dead letters too many or too few", [
        command.payment for command, count in unexpected.items() if count
    ])  # fmt: skip
    if books.expired_rows:
        found.append(f"{books.expired_rows} expired effects that were not swept")
    return found


async def left_to_do(database: str, client: Client) -> int:
    """How much is left: messages to ack, effects to end or to sweep, retries and rows of the outbox."""
    topic = await client.topics.describe(TOPIC)
    groups = [group for group in topic["groups"] if group["group"] == GROUP]
    assert groups, "the workers have made their group"
    lag = sum(partition["lag"] for partition in groups[0]["partitions"])
    async with await psycopg.AsyncConnection.connect(database) as connection:
        ((rows,),) = await _rows(
            connection,
            "SELECT (SELECT count(*) FROM postponed) + (SELECT count(*) FROM outbox) + (SELECT count(*) FROM "
            "driftq.effects WHERE status IN ('IN_PROGRESS', 'FAILED_RETRYABLE') OR expires_at <= clock_timestamp())",
        )
    return int(lag + rows)


async def _rows(connection: psycopg.AsyncConnection[Any], query: Any) -> list[Any]:
    return await (await connection.execute(query)).fetchall()


async def _messages(client: Client, topic: str) -> Any:
    for partition in (await client.topics.describe(topic))["partitions"]:
        offset = 0
        while page := await client.peek(topic, partition=partition["partition"], offset=offset, limit=PEEK_LIMIT):
            for message in page:
                yield message
            offset = page[-1].offset + 1


def _named(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(sorted(names)[:SHOWN_MAX]) + (", …" if len(names) > SHOWN_MAX else "")
    return [f"{len(names)} {what}: {shown}"]
