"""A worker whose effects happen once, with a payment provider that loses answers."""

from __future__ import annotations

from typing import Any

from driftq import Client, Context, Identity, Message, Output, Outputs, idempotency_key, scopes
from waiting import work_until


class Provider:
    """Stands for a payment provider that takes idempotency keys; its first answer is lost."""

    def __init__(self) -> None:
        self.calls = 0
        self.receipts: dict[str, dict[str, Any]] = {}

    async def charge(self, cents: int, *, key: str) -> dict[str, Any]:
        """Charges once per key."""
        self.calls += 1
        receipt = self.receipts.setdefault(key, {"receipt": len(self.receipts) + 1, "cents": cents})
        if self.calls == 1:
            raise ConnectionError("the connection was lost")
        return receipt


provider = Provider()
mails: list[dict[str, Any]] = []


async def mail(receipt: dict[str, Any]) -> None:
    """Stands for a mail server, which takes no keys."""
    mails.append(receipt)


async def handle_order(message: Message, context: Context) -> Outputs:
    """Charges an order, mails the receipt, and gives the order to the next step."""
    order = message.json()
    charge_key = idempotency_key("charge", order["id"])
    # Each of the two runs once per message, name and arguments, however often the handler is started.
    receipt = await context.side_effect("charge", order, lambda: provider.charge(order["cents"], key=charge_key))
    await context.side_effect("mail", receipt, lambda: mail(receipt))
    # Ack, result and the next message are one record in the log of the broker: all of them, or none.
    delivery = Output(topic="deliveries", json=order, idempotency_key=idempotency_key("delivery", order["id"]))
    return Outputs(delivery, result=receipt)


async def main(client: Client) -> None:
    """Runs the example."""
    for topic in ("orders", "deliveries"):
        await client.topics.create(topic)
    order = {"id": "o-7", "cents": 950}
    for _ in range(2):
        await client.produce("orders", json=order, idempotency_key=idempotency_key("order", "o-7"))
    await work_until(client, "orders", handle_order, ended=1)
    # The first attempt has charged, and the second could not know. The provider could: it was given the key.
    assert (provider.calls, len(provider.receipts), len(mails)) == (2, 1, 1)
    assert len(await client.peek("deliveries", partition=0)) == 1
    effect = await client.effects.get(Identity(scopes.consume("orders", "workers"), "order:o-7"))
    assert effect is not None
    assert (effect.status, effect.result) == ("SUCCEEDED", {"receipt": 1, "cents": 950})
