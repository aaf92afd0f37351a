"""The payment service: one worker process.

It takes payments from a topic. Each is one transaction of the database: balances, the transfer, a receipt in the
outbox, and the outcome of the effect. Beside the worker run a retry worker, the relay of the outbox and the sweeper.

python examples/payments/service.py --broker http://127.0.0.1:8080 --database "host=/run/postgresql dbname=payments"
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from driftq import (
    Client,
    Conflict,
    Context,
    Delivery,
    DriftqError,
    Event,
    Execute,
    Identity,
    InProgressElsewhere,
    InvalidRequest,
    Message,
    NotFound,
    Permanent,
    Replay,
    Retry,
    StaleLease,
    idempotency_key,
    request_hash,
    scopes,
)
from driftq.postgres import PostgresStore
from ledger import Command, Outcome, pay
from plants import PLANTS, planted
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

TOPIC = "payments"
GROUP = "bank"
LEASE_S = 3.0
CONCURRENCY = 8
RETRY_AFTER_S = 0.3
"""How long a payment that failed rests before the retry worker takes it."""
POLL_S = 0.2
SWEEP_S = 2.0
PAUSE_S = 0.05
"""Between two tries while the database or the broker is away."""

Connection = AsyncConnection[Any]
Pool = AsyncConnectionPool[Connection]


class Service:
    """Makes payments, each once."""

    def __init__(self, client: Client, pool: Pool, owner: str) -> None:
        self.client = client
        self.pool = pool
        self.store = PostgresStore(pool)
        self.owner = owner

    async def handle(self, message: Message, _context: Context) -> Any:
        """Handles one delivery. What it returns acks the message, at the broker and after the commit here."""
        try:
            command = Command.of(message.json())
        except ValueError as error:
            raise Permanent(str(error)) from error
        payment = Identity(scopes.consume(TOPIC, GROUP), command.key)
        try:
            decision = await self.store.begin(
                payment,
                owner=self.owner,
                lease=LEASE_S,
                request_hash=request_hash(command.as_json()),
                # A later delivery of this message takes the payment over from a worker that has died.
                delivery=Delivery(message.partition, message.offset, message.lease_token),
            )
            match decision:
                case Execute():
                    outcome = await self.settle(payment, command, decision)
                case Replay():
                    outcome = Outcome(decision.status, decision.result, decision.last_error)
                case InProgressElsewhere():
                    raise Retry("another message about this payment is handled", delay=decision.retry_after)
                case _:
                    raise AssertionError(f"{decision} in the scope of a message")
        except InvalidRequest as error:
            raise Permanent(f"the payment has been ordered otherwise before: {error.message}") from error
        except StaleLease as error:
            raise Retry("another worker has taken the payment over", delay=PAUSE_S) from error
        return {"status": outcome.status, "result": outcome.result}

    async def settle(self, payment: Identity, command: Command, grant: Execute) -> Outcome:
        """Makes the payment and ends its effect in one transaction, repeated until its outcome is known."""
        while True:
            try:
                return await self.attempt(payment, command, grant)
            except Conflict:
                # An earlier try was committed, and its answer was lost: its outcome counts.
                effect = await self.store.get(payment)
                assert effect is not None, "an effect that has just ended is remembered"
                return Outcome(effect.status, effect.result, effect.last_error)
            except (DriftqError, psycopg.OperationalError, psycopg.InterfaceError) as error:
                if not is_passing(error):
                    raise
            await asyncio.sleep(PAUSE_S)

    async def attempt(self, payment: Identity, command: Command, grant: Execute) -> Outcome:
        """One try: all of it is committed, or nothing."""
        async with self.pool.connection() as connection, connection.transaction():
            outcome = await pay(connection, command, grant.attempt)
            await self.finish(payment, grant, outcome, connection)
        return outcome

    async def finish(self, payment: Identity, grant: Execute, outcome: Outcome, connection: Connection | None) -> None:
        """Ends the effect, in the transaction of the connection if there is one."""
        await self.store.finish(
            payment,
            lease_token=grant.lease_token,
            status=outcome.status,
            result=outcome.result,
            last_error=outcome.last_error,
            connection=connection,
        )

    async def retry_failed(self) -> None:
        """Makes the payments again whose status says that they failed for now, or whose retry died with its worker."""
        for status in ("FAILED_RETRYABLE", "IN_PROGRESS"):
            after = None
            while True:
                page, after = await self.store.list(
                    kind="consume", status=status, older_than=RETRY_AFTER_S, after=after
                )
                for record in page:
                    await self.retry(record.identity)
                if after is None:
                    break

    async def retry(self, payment: Identity) -> None:
        """Makes one payment again, unless another retry worker or a message about it is faster."""
        async with self.pool.connection() as connection:
            cursor = await connection.execute("SELECT command FROM postponed WHERE key = %s", (payment.key,))
            row = await cursor.fetchone()
        if row is None:
            # In progress for a message, which is delivered again if its worker dies.
            return
        try:
            grant = await self.store.reacquire(payment, owner=self.owner, lease=LEASE_S)
            await self.settle(payment, Command.of(row[0]), grant)
        except (Conflict, StaleLease, NotFound):
            return

    async def relay(self) -> None:
        """Produces what transactions have left in the outbox. Repeated after a crash, it produces nothing twice."""
        async with self.pool.connection() as connection, connection.transaction():
            cursor = await connection.execute(
                "SELECT id, topic, key, value FROM outbox ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED"
            )
            rows = await cursor.fetchall()
            async with self.client.producer() as producer:
                await asyncio.gather(
                    *(
                        producer.produce(topic, json=value, key=key, idempotency_key=idempotency_key("outbox", number))
                        for number, topic, key, value in rows
                    )
                )
            await connection.execute("DELETE FROM outbox WHERE id = ANY(%s)", ([row[0] for row in rows],))

    async def run(self) -> None:
        """Runs until a signal stops the worker."""
        worker = self.client.worker(
            TOPIC,
            GROUP,
            self.handle,
            # The handler begins and ends the effect itself, within its transaction.
            scope="none",
            concurrency=CONCURRENCY,
            lease=LEASE_S,
            owner=self.owner,
            retry_delay=PAUSE_S,
            on_event=show_ready,
        )
        beside = [
            asyncio.create_task(repeated(self.retry_failed)),
            asyncio.create_task(repeated(self.relay)),
            asyncio.create_task(self.store.keep_swept(every=SWEEP_S)),
        ]
        for task in beside:
            # None ends by itself: one that fails must not leave a worker without it.
            task.add_done_callback(lambda _: worker.stop())
        try:
            await worker.run()
        finally:
            for task in beside:
                task.cancel()
            ended = await asyncio.gather(*beside, return_exceptions=True)
        failures = [error for error in ended if isinstance(error, Exception)]
        if failures:
            raise failures[0]


def show_ready(event: Event) -> None:
    """Prints a line whenever the worker begins to take messages."""
    if event.event == "connected":
        print("ready", flush=True)


async def repeated(job: Callable[[], Awaitable[None]]) -> None:
    """Runs a job again and again, also while the database or the broker is away."""
    while True:
        try:
            await job()
        except (DriftqError, psycopg.OperationalError, psycopg.InterfaceError) as error:
            if not is_passing(error):
                raise
        await asyncio.sleep(POLL_S)


def is_passing(error: Exception) -> bool:
    """Whether another try can succeed: the server or the connection failed, not the request."""
    return error.retry_is_safe if isinstance(error, DriftqError) else True


async def main(arguments: argparse.Namespace) -> None:
    """Runs one worker process."""
    service = planted(arguments.plant, Service) if arguments.plant else Service
    async with (
        Client(arguments.broker) as client,
        AsyncConnectionPool(arguments.database, min_size=1, max_size=CONCURRENCY + 4, open=False) as pool,
    ):
        await service(client, pool, arguments.name).run()


if __name__ == "__main__":
    for noisy in ("psycopg", "driftq"):
        # Both report each connection that a kill has ended.
        logging.getLogger(noisy).setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description="a worker of the payment service")
    parser.add_argument("--broker", required=True, help="URL of the broker")
    parser.add_argument("--database", required=True, help="connection string of PostgreSQL")
    parser.add_argument("--name", default="worker-1", help="unlike that of any other worker")
    parser.add_argument("--plant", choices=PLANTS, help="make a mistake on purpose, which the audit must find")
    asyncio.run(main(parser.parse_args()))
