"""Takes orders, charges each once, and hands baked pizzas to the next step; ends when all are baked.

python examples/orders.py http://127.0.0.1:8080
"""

import asyncio
import sys

from driftq import Client, Context, Event, Message, Output, Outputs, Permanent

ORDERS = [{"pizza": "margherita", "price": 9}, {"pizza": "pineapple", "price": 11}, {"pizza": "funghi", "price": 10}]


async def charge(price: int) -> dict[str, int]:
    """Stands for a payment provider, which is better given the idempotency key too."""
    return {"charged": price}


async def bake(message: Message, context: Context) -> Outputs:
    order = message.json()
    if order["pizza"] == "pineapple":
        raise Permanent("not in this kitchen")
    receipt = await context.side_effect("charge", order, lambda: charge(order["price"]))
    delivery = Output(topic="deliveries", json=order, idempotency_key=f"{message.idempotency_key}:delivery")
    return Outputs(delivery, result=receipt)


async def main(url: str) -> None:
    async with Client(url) as client:
        for topic in ("orders", "deliveries"):
            await client.topics.create(topic)
        async with client.producer() as producer:
            orders = enumerate(ORDERS)
            await asyncio.gather(*(producer.produce("orders", json=o, idempotency_key=f"o-{n}") for n, o in orders))

        settled = 0

        def show(event: Event) -> None:
            nonlocal settled
            if event.event in ("completed", "failed"):
                print(event.as_json())
                settled += 1
                if settled == len(ORDERS):
                    worker.stop()

        worker = client.worker("orders", "kitchen", bake, per_key_order=True, on_event=show)
        await worker.run()
        for message in await client.peek("deliveries", partition=0):
            print("to deliver:", message.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
