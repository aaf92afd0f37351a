"""Runs a worker until some messages have ended; what the examples of this folder share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from driftq import Client, Event

TIMEOUT_S = 60.0


async def work_until(
    client: Client, topic: str, handler: Callable[..., Awaitable[Any]], *, ended: int, **options: Any
) -> None:
    """Runs a worker of the group `workers` until so many messages are completed or dead letters."""
    completed = 0

    def count(event: Event) -> None:
        nonlocal completed
        completed += event.event == "completed"

    worker = client.worker(topic, "workers", handler, on_event=count, stop_on=(), **options)
    running = asyncio.create_task(worker.run())

    async def wait() -> None:
        # A message that becomes a dead letter at the broker is no event of the worker.
        while completed + await dead_letters(client, topic) < ended:
            assert not running.done(), "the worker has ended"
            await asyncio.sleep(0.05)

    await asyncio.wait_for(wait(), TIMEOUT_S)
    worker.stop()
    await running


async def dead_letters(client: Client, topic: str) -> int:
    """How many dead letters a topic of one partition has."""
    if f"dlq.{topic}" not in await client.topics.list():
        return 0
    return len(await client.dlq.peek(topic, partition=0))
