"""A worker behind a proxy that loses requests and answers and cuts streams, the same for the same seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from driftq import Client, Context, Identity, Message, Output, Outputs, Worker, scopes
from driftq.testing import Broker
from support import Events, asynchronous, fresh, needs_broker

LOSS = 0.08
MESSAGES = 120


@asynccontextmanager
async def lossy_proxy(target: str, seed: int) -> AsyncIterator[str]:
    chance = random.Random(seed)

    async def forward(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        if chance.random() < LOSS:
            transport.abort()
            raise asyncio.CancelledError
        url = target + request.raw_path
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        body = await request.read()
        sent = session.request(request.method, URL(url, encoded=True), headers=headers, data=body)
        async with sent as answer:
            if request.path == "/v1/consume" and answer.status == 200:
                response = web.StreamResponse(headers={"Content-Type": answer.headers["Content-Type"]})
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    if chance.random() < LOSS:
                        await response.write(chunk[: len(chunk) // 2])
                        transport.abort()
                        return response
                    await response.write(chunk)
                return response
            text = await answer.read()
            if chance.random() < LOSS:
                transport.abort()
                raise asyncio.CancelledError
            kept = {name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers}
            return web.Response(status=answer.status, body=text, headers=kept)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@needs_broker
@pytest.mark.parametrize("seed", [1, 2, 3])
@asynchronous
async def test_nothing_is_lost_and_nothing_happens_twice(driftq_broker: Broker, seed: int) -> None:
    topic, following = fresh("t"), fresh("t")
    charged: Counter[str] = Counter()

    async def handle(message: Message, context: Context) -> Outputs:
        async def charge() -> str:
            charged[message.text] += 1
            return message.text

        receipt = await context.side_effect("charge", message.text, charge)
        return Outputs(Output(topic=following, value=message.text), result=receipt)

    async with lossy_proxy(driftq_broker.url, seed) as url, Client(url) as client, Client(driftq_broker.url) as direct:
        await client.topics.create(topic)
        await client.topics.create(following)
        async with client.producer() as producer:
            numbers = range(MESSAGES)
            await asyncio.gather(*(producer.produce(topic, f"{n}", idempotency_key=f"k{n}") for n in numbers))
        events = Events()
        worker = Worker(client, topic, "g", handle, on_event=events, stop_on=(), concurrency=8, lease=2.0)
        running = asyncio.create_task(worker.run())
        # Outputs may be produced by a complete whose answer was lost: the broker alone knows.
        while len(await direct.peek(following, partition=0, limit=1000)) < MESSAGES:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        worker.stop()
        await running
        assert events.named("request_retried") != []
        outputs = Counter(message.text for message in await direct.peek(following, partition=0, limit=1000))
        expected = Counter({str(n): 1 for n in range(MESSAGES)})
        assert outputs == expected
        assert charged == expected
        for n in range(MESSAGES):
            effect = await direct.effects.get(Identity(scopes.consume(topic, "g"), f"k{n}"))
            assert effect is not None
            assert (effect.status, effect.result) == ("SUCCEEDED", str(n))
