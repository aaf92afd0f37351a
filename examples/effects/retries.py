"""Which failure is what: retried after a pause, retried when asked to, or never again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from driftq import Client, Context, Message, Permanent, Retry, RetryPolicy
from waiting import work_until


@dataclass
class Answer:
    """An answer of a provider over HTTP."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


SCRIPT: dict[str, list[Answer | Exception]] = {
    "busy-then-lost": [Answer(429, headers={"Retry-After": "1"}), TimeoutError("no answer"), Answer(200, "paid")],
    "no-such-card": [Answer(402, "no such card")],
    "always-down": [Answer(503)] * 3,
}
calls: Counter[str] = Counter()


async def post_charge(order: dict[str, Any], *, key: str) -> Answer:
    """Stands for a request to a provider."""
    answer = SCRIPT[order["id"]][calls[key]]
    calls[key] += 1
    if isinstance(answer, Exception):
        raise answer
    return answer


async def charge(message: Message, _context: Context) -> Any:
    """What an answer of the provider means to the message."""
    try:
        answer = await post_charge(message.json(), key=message.idempotency_key)
    except (ConnectionError, TimeoutError) as error:
        # Has it charged? The next attempt asks with the same key.
        raise Retry(f"no answer: {error}") from error
    if answer.status == 429 or answer.status >= 500:
        after = answer.headers.get("Retry-After", "")
        raise Retry(f"the provider answered {answer.status}", delay=float(after) if after.isdecimal() else None)
    if answer.status >= 400:
        raise Permanent(f"the provider answered {answer.status}: {answer.body}")
    return answer.body


async def order(client: Client, name: str) -> None:
    """Orders with a policy: what a failure without a delay of its own waits, and how many attempts there are."""
    policy = RetryPolicy(max_attempts=3, backoff_ms=100, max_backoff_ms=60_000)
    await client.produce("charges", json={"id": name}, idempotency_key=name, retry_policy=policy)


async def main(client: Client) -> None:
    """Runs the example."""
    await client.topics.create("charges")
    for name in SCRIPT:
        await order(client, name)
    await work_until(client, "charges", charge, ended=len(SCRIPT))
    assert calls == {name: len(answers) for name, answers in SCRIPT.items()}
    dead = await client.dlq.peek("charges", partition=0)
    reasons = {message.idempotency_key: message.envelope.dlq.reason for message in dead if message.envelope.dlq}
    assert reasons == {"no-such-card": "non_retryable", "always-down": "max_attempts"}
