"""A service in FastAPI whose charges happen once, over the broker's store or over PostgreSQL.

DRIFTQ_URL=http://127.0.0.1:8080 uvicorn --app-dir examples/rpc fastapi_app:app
DATABASE="host=/run/postgresql dbname=payments" uvicorn --app-dir examples/rpc fastapi_app:app
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from driftq import Client
from driftq.postgres import PostgresStore
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from idempotent import Answer, Call, Handler, Idempotency, Rejected
from psycopg_pool import AsyncConnectionPool

OWNER = os.environ.get("OWNER", f"charges-{os.getpid()}")
LEASE_S = float(os.environ.get("LEASE_S", "30"))
PROVIDER_S = float(os.environ.get("PROVIDER_S", "0"))
"""How long the payment provider takes to answer."""
CHARGES = "charges"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Opens the store, and the database or the broker that charges are written to."""
    database = os.environ.get("DATABASE")
    if database is None:
        async with Client(os.environ.get("DRIFTQ_URL", "http://127.0.0.1:8080"), retry_for=5) as client:
            await client.topics.create(CHARGES)
            app.state.client = client
            app.state.idempotency = Idempotency(client.effects, owner=OWNER, lease=LEASE_S)
            app.state.charge = charge_at_provider
            yield
        return
    async with AsyncConnectionPool(database, min_size=1, open=False) as pool:
        store = PostgresStore(pool, retry_for=5)
        await store.migrate()
        async with pool.connection() as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS charges (customer text, cents bigint)")
        app.state.pool = pool
        app.state.idempotency = Idempotency(store, owner=OWNER, lease=LEASE_S)
        app.state.charge = charge_in_database
        sweeper = asyncio.create_task(store.keep_swept())
        yield
        sweeper.cancel()


app = FastAPI(lifespan=lifespan)


def idempotent(handler: Handler) -> Callable[[Request], Awaitable[JSONResponse]]:
    """Makes a handler of requests out of one that takes the JSON of the body and a `Call`."""

    async def endpoint(request: Request) -> JSONResponse:
        # Stands for authentication: a caller must not be able to use the keys of another.
        caller = request.headers.get("x-caller", "anonymous")
        try:
            body = await request.json()
        except ValueError:
            return JSONResponse({"error": "the body is no JSON"}, 400)
        answer = await request.app.state.idempotency.answer(
            caller, f"{request.method} {request.url.path}", request.headers.get("idempotency-key"), body, handler
        )
        return JSONResponse(answer.body, answer.status, answer.headers)

    return endpoint


@app.post("/charges")
@idempotent
async def charge(body: Any, call: Call) -> Answer:
    """Charges a customer."""
    match body:
        case {"customer": str(customer), "cents": int(cents)} if cents > 0:
            pass
        case _:
            raise Rejected(400, "a charge has a customer and a positive number of cents")
    print(f"charging for {call.identity.key}, attempt {call.grant.attempt}", flush=True)
    answer: Answer = await app.state.charge(customer, cents, call)
    return answer


async def charge_at_provider(customer: str, cents: int, call: Call) -> Answer:
    """Charges outside. The key goes along: an attempt after a crash is the same charge to the provider.

    The provider here is a topic; a message with a key that it has had is a duplicate.
    """
    fields = {"customer": customer, "cents": cents}
    await app.state.client.produce(CHARGES, json=fields, idempotency_key=f"{customer}:{call.identity.key}")
    await answer_of_provider(call)
    return Answer(201, {"charged": cents})


async def charge_in_database(customer: str, cents: int, call: Call) -> Answer:
    """Charges in the database of the store: row and outcome are committed together, or neither is."""
    async with app.state.pool.connection() as connection, connection.transaction():
        await connection.execute("INSERT INTO charges (customer, cents) VALUES (%s, %s)", (customer, cents))
        await answer_of_provider(call)
        return await call.finish(Answer(201, {"charged": cents}), connection=connection)


async def answer_of_provider(call: Call) -> None:
    """Stands for a provider that takes its time."""
    print(f"charged for {call.identity.key}", flush=True)
    await asyncio.sleep(PROVIDER_S)
