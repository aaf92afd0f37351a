"""A service that answers a repeated request with the first one's result, over crashes too.

python examples/service.py http://127.0.0.1:8080
"""

import asyncio
import sys
from typing import Any

from driftq import (
    Client,
    Execute,
    Identity,
    InProgressElsewhere,
    InvalidRequest,
    Replay,
    Retryable,
    Store,
    request_hash,
    scopes,
)


async def handle(store: Store, caller: str, key: str, request: dict[str, Any]) -> dict[str, Any]:
    """Handles a request with an idempotency key."""
    call = Identity(scopes.rpc(caller, "/payments.Payments/Charge"), key)
    try:
        decision = await store.begin(call, owner="payments-1", lease=30, request_hash=request_hash(request))
    except InvalidRequest as error:
        return {"error": error.code}
    if isinstance(decision, Retryable):
        decision = await store.reacquire(call, owner="payments-1", lease=30)
    match decision:
        case Execute():
            result = {"charged": request["amount"]}
            await store.finish(call, lease_token=decision.lease_token, status="SUCCEEDED", result=result)
            return result
        case Replay():
            return {**decision.result, "replayed": True}
        case InProgressElsewhere():
            return {"retry_after": decision.retry_after}
    raise AssertionError(decision)


async def main(url: str) -> None:
    async with Client(url) as client:
        print(await handle(client.effects, "alice", "c-1", {"amount": 3}))
        print(await handle(client.effects, "alice", "c-1", {"amount": 3}))
        print(await handle(client.effects, "alice", "c-1", {"amount": 4}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
