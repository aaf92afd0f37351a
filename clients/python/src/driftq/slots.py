"""How many handlers run at a time, and which has to wait for another."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """Slots given in the order in which they were asked for. Those of one order key follow each other."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[asyncio.Future[bool]] = deque()
        self._ordered: dict[str, deque[asyncio.Future[bool]]] = {}
        self._closed = False

    async def acquire(self, order_key: str | None = None) -> bool:
        """Waits for a slot. False if the slots were closed first: then there is none to release."""
        if self._closed:
            return False
        if order_key is not None:
            followers = self._ordered.get(order_key)
            if followers is None:
                self._ordered[order_key] = deque()
            elif not await _queued(followers):
                return False
        if self._free:
            self._free -= 1
            return True
        if await _queued(self._queue):
            return True
        self._release_order(order_key)
        return False

    def release(self, order_key: str | None = None) -> None:
        """Gives a slot back, and lets the next one of its order key follow."""
        if not _wake_first(self._queue):
            self._free += 1
        self._release_order(order_key)

    def close(self) -> None:
        """Refuses those that wait, and all that come."""
        self._closed = True
        for queue in [self._queue, *self._ordered.values()]:
            for waiter in queue:
                if not waiter.done():
                    waiter.set_result(False)
            queue.clear()

    def _release_order(self, order_key: str | None) -> None:
        if order_key is not None and not _wake_first(self._ordered[order_key]):
            del self._ordered[order_key]


async def _queued(queue: deque[asyncio.Future[bool]]) -> bool:
    waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    queue.append(waiter)
    return await waiter


def _wake_first(queue: deque[asyncio.Future[bool]]) -> bool:
    while queue:
        waiter = queue.popleft()
        if not waiter.done():
            waiter.set_result(True)
            return True
    return False
