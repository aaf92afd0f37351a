"""What the tests share: a runner for asynchronous tests, and waiting for conditions with a bound."""

from __future__ import annotations

import asyncio
import functools
import itertools
import shutil
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from driftq import Event
from driftq.testing import find_driftqd

TEST_TIMEOUT_S = 60.0

needs_broker = pytest.mark.skipif(find_driftqd() is None, reason="no driftqd found: set DRIFTQD or build it")

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")

_numbers = itertools.count()


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an asynchronous test in a loop of its own, within a bound."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), TEST_TIMEOUT_S))

    return run


def fresh(prefix: str) -> str:
    """A name that no other test of the session uses."""
    return f"{prefix}-{next(_numbers)}"


class Events:
    """Collects events, and lets a test wait for one."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.all.append(event)
        self._changed.set()

    def named(self, name: str) -> list[Event]:
        return [event for event in self.all if event.event == name]

    async def wait_for(self, name: str, count: int = 1) -> list[Event]:
        while len(self.named(name)) < count:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), TEST_TIMEOUT_S)
        return self.named(name)


def server_side(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """The TLS settings of a server with a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context
