"""Measures a worker: messages with begin and complete per second, and the CPU time of an idle one.

    python bench/worker.py [--messages 20000] [--concurrency 64] [--idle 10] [--url URL]

Without `--url` it starts a broker of its own. The rate per second of CPU time is that of one core for the worker's
process alone, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import ExitStack

from driftq import Client, Context, Message
from driftq.testing import broker


async def fill(url: str, topic: str, count: int) -> None:
    async with Client(url) as client:
        await client.topics.create(topic)
        async with client.producer() as producer:
            for start in range(0, count, 1000):
                many = range(start, min(start + 1000, count))
                await asyncio.gather(
                    *(producer.produce(topic, '{"pizza":1}', idempotency_key=f"order-{n}") for n in many)
                )


async def drain(url: str, topic: str, count: int, concurrency: int) -> tuple[float, float]:
    handled = 0
    async with Client(url) as client:

        async def handle(message: Message, context: Context) -> dict[str, bool]:
            nonlocal handled
            handled += 1
            if handled == count:
                worker.stop()
            return {"baked": True}

        worker = client.worker(topic, "kitchen", handle, concurrency=concurrency)
        wall, cpu = time.perf_counter(), time.process_time()
        await worker.run()
        return time.perf_counter() - wall, time.process_time() - cpu


async def idle(url: str, topic: str, seconds: float) -> float:
    async with Client(url) as client:

        async def handle(message: Message, context: Context) -> None: ...

        worker = client.worker(topic, "idle", handle, start="latest")
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(2)
        cpu = time.process_time()
        await asyncio.sleep(seconds)
        used = time.process_time() - cpu
        worker.stop()
        await running
        return used / seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--idle", type=float, default=10.0)
    parser.add_argument("--url")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        url = arguments.url or stack.enter_context(broker()).url
        topic = f"bench-{time.time_ns()}"
        asyncio.run(fill(url, topic, arguments.messages))
        wall, cpu = asyncio.run(drain(url, topic, arguments.messages, arguments.concurrency))
        print(f"begin + complete: {arguments.messages / wall:,.0f} messages/s")
        print(f"per second of the worker's CPU time: {arguments.messages / cpu:,.0f} messages")
        print(f"idle worker: {100 * asyncio.run(idle(url, topic, arguments.idle)):.3f} % of one core")


if __name__ == "__main__":
    main()
