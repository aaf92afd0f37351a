"""Payments in the database: what one transaction does for one of them."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from driftq import idempotency_key
from psycopg import AsyncConnection
from psycopg.types.json import Json

RECEIPTS = "receipts"
CLOSED_AT_FIRST = 8
"""For one payment in so many the payee's bank is closed at the first attempt."""


@dataclass(frozen=True)
class Command:
    """A payment to make, as a message has it."""

    payment: str
    payer: str
    payee: str
    cents: int

    @classmethod
    def of(cls, fields: Any) -> Command:
        """The command in a JSON value; `ValueError` if it is none."""
        try:
            command = cls(**fields)
        except TypeError as error:
            raise ValueError(f"no payment: {error}") from error
        names = (command.payment, command.payer, command.payee)
        is_typed = all(isinstance(name, str) for name in names) and isinstance(command.cents, int)
        if not is_typed or command.cents <= 0 or command.payer == command.payee:
            raise ValueError("a payment has an id, two different accounts and a positive number of cents")
        return command

    @property
    def key(self) -> str:
        """The key of the payment's effect: that of the payment, whichever message is about it."""
        return idempotency_key("payment", self.payment)

    def as_json(self) -> dict[str, Any]:
        """The JSON value."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """How a payment ended, in the terms of the store."""

    status: str
    result: Any = None
    last_error: str = ""


class Declined(Exception):
    """The payer's balance does not suffice."""


async def pay(connection: AsyncConnection[Any], command: Command, attempt: int) -> Outcome:
    """Makes the payment within the open transaction, or says why not."""
    if is_bank_closed(command.payment, attempt):
        await connection.execute(
            "INSERT INTO postponed (key, command) VALUES (%s, %s) ON CONFLICT (key) DO NOTHING",
            (command.key, Json(command.as_json())),
        )
        return Outcome("FAILED_RETRYABLE", last_error="the payee's bank is closed")
    await connection.execute("DELETE FROM postponed WHERE key = %s", (command.key,))
    try:
        # A savepoint: what was changed before the payment was declined is undone.
        async with connection.transaction():
            await transfer(connection, command)
    except Declined:
        return Outcome("FAILED_FINAL", last_error="insufficient funds")
    await connection.execute(
        "INSERT INTO outbox (topic, key, value) VALUES (%s, %s, %s)",
        (RECEIPTS, command.payer, Json({"payment": command.payment, "cents": command.cents})),
    )
    return Outcome("SUCCEEDED", result={"paid": command.cents})


async def transfer(connection: AsyncConnection[Any], command: Command) -> None:
    """Moves the money. Each update has its condition in it: nothing read before can be out of date."""
    # In the order of the accounts, so that two payments never wait for each other.
    for account, change in sorted(((command.payer, -command.cents), (command.payee, command.cents))):
        changed = await connection.execute(
            "UPDATE accounts SET cents = cents + %s, version = version + 1 WHERE id = %s AND cents + %s >= 0",
            (change, account, change),
        )
        if changed.rowcount != 1:
            raise Declined
    await connection.execute(
        "INSERT INTO transfers (payment, payer, payee, cents) VALUES (%s, %s, %s, %s)",
        (command.payment, command.payer, command.payee, command.cents),
    )


def is_bank_closed(payment: str, attempt: int) -> bool:
    """Stands for a partner that cannot be reached now and then; the same for each payment in every run."""
    digest = hashlib.sha256(payment.encode()).digest()
    return attempt == 1 and digest[0] % CLOSED_AT_FIRST == 0
