"""Keys and hashes that are the same in every process, version and language."""

from __future__ import annotations

import os
import subprocess
import sys

from driftq import Client, Identity, InvalidRequest, Misuse, idempotency_key, request_hash, scopes


def keys() -> None:
    """Keys: what they are made of, and what they must not be made of."""
    # Parts are encoded, so that different parts never give one key.
    assert idempotency_key("order", "o-7", "charge", 1) == "order:o-7:charge:1"
    assert idempotency_key("a:b", "c") == "a%3Ab:c" != idempotency_key("a", "b:c")
    assert len(idempotency_key("x" * 1_000)) == len("sha256:") + 64


async def hashes(client: Client) -> None:
    """Hashes of requests: by value, not by spelling."""
    request = {"customer": "Zoé", "cents": 950}
    assert request_hash(request) == "e665e76db193946ee198c1ccf28fb530969d665a60dc9aa7f97f4089475d74df"
    assert request_hash({"cents": 950.0, "customer": "Zoé"}) == request_hash(request)
    # The first request is stored with the key. The same key with another one is refused, in every state.
    charge = Identity(scopes.rpc("shop", "POST /charges"), "c-1")
    await client.effects.begin(charge, owner="here", request_hash=request_hash(request))
    try:
        await client.effects.begin(charge, owner="here", request_hash=request_hash({**request, "cents": 951}))
    except InvalidRequest as error:
        refused = error.status
    assert refused == 422


def unstable() -> None:
    """Why not `hash()`: it is another number in each process."""
    command = [sys.executable, "-c", "print(hash('order-7'))"]
    in_processes = (subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": s}) for s in "12")
    assert len(set(in_processes)) == 2


def misuse() -> None:
    """What has no stable form is refused, with its path."""
    for value, path in (({"cents": float("nan")}, "$.cents"), ({"id": 2**53}, "$.id"), ([b"bytes"], "$[0]")):
        try:
            request_hash(value)
        except Misuse as error:
            refused = error.message
        assert path in refused


async def main(client: Client) -> None:
    """Runs the example."""
    keys()
    await hashes(client)
    unstable()
    misuse()
