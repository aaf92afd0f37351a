"""The worker of the pipeline: plan → tool → report. Start as many of them as you like, and kill them when you like.

DRIFTQ_URL names the broker, SERVICE_URL the outside service.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import aiohttp
from driftq import Client, Context, Message, Output, Outputs, idempotency_key

GROUP = "pipeline"
LEASE = 2.0
"""Short, so that the messages of a killed worker are soon delivered to another one. Heartbeats prolong it."""


class Pipeline:
    """The handlers of the three steps."""

    def __init__(self, service: aiohttp.ClientSession) -> None:
        self._service = service

    async def plan(self, message: Message, context: Context) -> Outputs:
        """Asks a model what to do."""
        order = message.json()
        plan = await self._call("model", message, order)
        return Outputs(next_step(message, "tool", {**order, "plan": plan}), result=plan)

    async def tool(self, message: Message, context: Context) -> Outputs:
        """Charges the customer, and works on. A worker that dies in that work has charged: the next one gets the
        receipt."""
        order = message.json()
        receipt = await context.side_effect("charge", order, lambda: self._call("charge", message, order))
        await asyncio.sleep(0.05)
        return Outputs(next_step(message, "report", {**order, "receipt": receipt}), result=receipt)

    async def report(self, message: Message, context: Context) -> int:
        """Writes the report."""
        return await self._call("report", message, message.json())

    async def _call(self, effect: str, message: Message, order: Any) -> int:
        """Calls the outside service. It gets the message's key: if this worker dies before the answer, the next one
        asks for the same effect again, and gets the same answer."""
        headers = {"Idempotency-Key": message.idempotency_key, "traceparent": message.trace or ""}
        async with self._service.post(f"/{effect}", json=order, headers=headers) as answer:
            answer.raise_for_status()
            return int((await answer.json())["number"])


def next_step(message: Message, topic: str, order: Any) -> Output:
    """The message of the next step: same run, same customer, a key of its own. Its trace is that of this message."""
    run = message.envelope.run_id or ""
    return Output(
        topic=topic,
        json=order,
        key=message.key,
        idempotency_key=idempotency_key(run, topic),
        run_id=run,
        step_id=topic,
        parent_step_id=message.envelope.step_id,
    )


async def main() -> None:
    service_url = os.environ["SERVICE_URL"]
    async with Client(os.environ["DRIFTQ_URL"]) as client, aiohttp.ClientSession(service_url) as service:
        pipeline = Pipeline(service)
        workers = [
            client.worker("plan", GROUP, pipeline.plan, lease=LEASE),
            # One charge of a customer after the other.
            client.worker("tool", GROUP, pipeline.tool, lease=LEASE, per_key_order=True),
            client.worker("report", GROUP, pipeline.report, lease=LEASE),
        ]
        await asyncio.gather(*(worker.run() for worker in workers))


if __name__ == "__main__":
    asyncio.run(main())
