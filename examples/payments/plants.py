"""Mistakes that a payment service may have. Each is made on purpose to see that the audit finds it."""

from __future__ import annotations

import asyncio
from typing import Any

import ledger
from driftq import Execute, Identity
from ledger import Command, Declined, Outcome, pay
from psycopg import AsyncConnection

WINDOW_S = 0.2
"""Makes the moment between two steps that should be one long enough for a few kills to hit it."""

PLANTS = {
    "double": "the outcome of the effect is committed in a transaction of its own",
    "lost_update": "balances are read, changed in the program, and written",
    "early_receipt": "the receipt is produced before the commit, past the outbox",
}


def planted(plant: str, service: Any) -> Any:
    """The class of a service that makes the mistake."""
    if plant == "double":
        return type("Double", (service,), {"attempt": _attempt_in_two_transactions})
    if plant == "lost_update":
        ledger.transfer = _transfer_what_was_read
        return service
    return type("EarlyReceipt", (service,), {"attempt": _attempt_with_early_receipt})


async def _attempt_in_two_transactions(self: Any, payment: Identity, command: Command, grant: Execute) -> Outcome:
    async with self.pool.connection() as connection, connection.transaction():
        outcome = await pay(connection, command, grant.attempt)
    await asyncio.sleep(WINDOW_S)
    await self.finish(payment, grant, outcome, None)
    return outcome


async def _transfer_what_was_read(connection: AsyncConnection[Any], command: Command) -> None:
    for account, change in sorted(((command.payer, -command.cents), (command.payee, command.cents))):
        cursor = await connection.execute("SELECT cents FROM accounts WHERE id = %s", (account,))
        row = await cursor.fetchone()
        assert row is not None, "accounts are not closed"
        if row[0] + change < 0:
            raise Declined
        await asyncio.sleep(WINDOW_S)
        await connection.execute(
            "UPDATE accounts SET cents = %s, version = version + 1 WHERE id = %s", (row[0] + change, account)
        )
    await connection.execute(
        "INSERT INTO transfers (payment, payer, payee, cents) VALUES (%s, %s, %s, %s)",
        (command.payment, command.payer, command.payee, command.cents),
    )


async def _attempt_with_early_receipt(self: Any, payment: Identity, command: Command, grant: Execute) -> Outcome:
    async with self.pool.connection() as connection, connection.transaction():
        outcome = await pay(connection, command, grant.attempt)
        await connection.execute("DELETE FROM outbox WHERE value->>'payment' = %s", (command.payment,))
        if outcome.status == "SUCCEEDED":
            receipt = {"payment": command.payment, "cents": command.cents}
            await self.client.produce(ledger.RECEIPTS, json=receipt, key=command.payer)
        await asyncio.sleep(WINDOW_S)
        await self.finish(payment, grant, outcome, connection)
    return outcome
