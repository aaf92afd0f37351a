"""A worker: handles the messages of a group, each effect once, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Literal

from driftq.batcher import Batcher
from driftq.client import Client, default_owner
from driftq.errors import Misuse
from driftq.events import EventHook, Reporter
from driftq.job import Handler, Job
from driftq.messages import Message
from driftq.run import Run
from driftq.scopes import Scope, consume
from driftq.slots import Slots
from driftq.stop_signals import call_on_signals
from driftq.store import Store
from driftq.stream import StreamOptions, messages
from driftq.tracing import Tracer

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Worker:
    """Handles the messages of a group.

    `handler(message, context)` is asynchronous, or a plain function that runs in a thread. It returns a JSON value or
    `Outputs`, or raises `Retry` or `Permanent`; any other exception counts as `Retry`.

    Args:
        client: The client to use; it stays open.
        topic: The topic.
        group: The group; it is created if it does not exist.
        handler: See above.
        concurrency: Handlers at a time, and the most leases that the broker gives to this worker's stream.
        lease: Seconds for which a delivery and its effect are held without a heartbeat.
        scope: `"consume"`, `"none"` (no store), or a `Scope` for effects that are known by another scope.
        per_key_order: Messages of one key are handled one after the other, in the order delivered.
        grace: Seconds that a stop leaves to handlers before it cancels them.
        owner: The name of this worker, unlike any other's.
        retry_delay: Seconds until a failed message is delivered again, where the error names none.
        on_event: Called with each `Event`.
        tracer: Opens a span per run.
        store: A store of effects other than the broker's.
        start: Where a new group starts.
        stop_on: Signals that stop the worker, if `run` is called in the main thread.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        group: str,
        handler: Handler,
        *,
        concurrency: int = 16,
        lease: float = 30.0,
        scope: Scope | Literal["consume", "none"] = "consume",
        per_key_order: bool = False,
        grace: float = 10.0,
        owner: str | None = None,
        retry_delay: float | None = None,
        on_event: EventHook | None = None,
        tracer: Tracer | None = None,
        store: Store | None = None,
        start: Literal["earliest", "latest"] | None = None,
        stop_on: Sequence[signal.Signals] = STOP_SIGNALS,
    ) -> None:
        if concurrency < 1 or lease <= 0 or grace < 0:
            raise Misuse("concurrency must be at least 1, lease above 0, and grace at least 0")
        if not callable(handler):
            raise Misuse("the handler must be callable")
        self._grace = grace
        self._stop_on = tuple(stop_on)
        self._stopping = asyncio.Event()
        self._has_run = False
        self._runs: dict[asyncio.Task[None], Run] = {}
        self._newest: dict[tuple[int, int], Run] = {}
        self.owner = owner or default_owner()
        self._options = StreamOptions(
            topic=topic, group=group, owner=self.owner, lease=lease, prefetch=concurrency, start=start
        )
        self._job = Job(
            client=client,
            topic=topic,
            group=group,
            owner=self.owner,
            lease=lease,
            handler=handler,
            scope=consume(topic, group) if scope == "consume" else None if scope == "none" else scope,
            store=store,
            per_key_order=per_key_order,
            retry_delay=retry_delay,
            tracer=tracer,
            reporter=Reporter(on_event, topic=topic, group=group, owner=self.owner),
            slots=Slots(concurrency),
            stopping=self._stopping,
            threads=ThreadPoolExecutor(concurrency, thread_name_prefix="driftq-handler"),
            begins=Batcher(client.connection, "/v1/idempotency/begin"),
            completes=Batcher(client.connection, "/v1/complete"),
            held=set(),
        )

    def stop(self, grace: float | None = None) -> None:
        """Asks `run` to return: releases what has not begun, and leaves `grace` seconds to handlers."""
        if grace is not None:
            self._grace = grace
        self._stopping.set()

    async def run(self) -> None:
        """Handles messages until the worker is stopped or cancelled. Returns when it holds no lease any more.

        Raises what no retry can mend: a wrong key, an unknown topic, a server that is no DriftQ broker.
        """
        if self._has_run:
            raise Misuse("a worker runs once; make another one")
        self._has_run = True
        restore = call_on_signals(self._stop_on, self.stop)
        with self._job.client.connection.reported_to(self._job.reporter):
            failure = await self._run_until_stopped(restore)
        if failure is not None:
            raise failure

    async def _run_until_stopped(self, restore: Callable[[], None]) -> BaseException | None:
        reader = asyncio.create_task(self._read())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({reader, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                failure = await self._shut_down(reader)
            finally:
                stopped.cancel()
                restore()
        return failure

    async def _read(self) -> None:
        job = self._job
        loop = asyncio.get_running_loop()
        async with aclosing(messages(job.client.connection, self._options, job.reporter)) as deliveries:
            async for message in deliveries:
                self._accept(message, loop)

    def _accept(self, message: Message, loop: asyncio.AbstractEventLoop) -> None:
        place = (message.partition, message.offset)
        earlier = self._newest.get(place)
        if earlier is not None and earlier.lease_token == message.lease_token:
            # The line of a delivery has come twice.
            return
        run = Run(self._job, message, received=loop.time())
        if earlier is not None and earlier.lease_token < message.lease_token:
            earlier.lose()
        self._newest[place] = run
        task = loop.create_task(run.process())
        self._runs[task] = run

        def forget(task: asyncio.Task[None]) -> None:
            del self._runs[task]
            if self._newest.get(place) is run:
                del self._newest[place]

        task.add_done_callback(forget)

    async def _shut_down(self, reader: asyncio.Task[None]) -> BaseException | None:
        """Ends the stream, then the runs. Returns what ended the reader, if it failed."""
        self._stopping.set()
        reader.cancel()
        await asyncio.wait({reader})
        self._job.slots.close()
        if self._runs:
            await asyncio.wait(set(self._runs), timeout=self._grace)
        for run in list(self._runs.values()):
            run.cancel_for_shutdown()
        if self._runs:
            await asyncio.wait(set(self._runs), timeout=self._job.lease)
        # What is left waits for a broker that does not answer; its leases have run out.
        for task in list(self._runs):
            task.cancel()
        if self._runs:
            await asyncio.wait(set(self._runs))
        self._job.threads.shutdown(wait=False, cancel_futures=True)
        return None if reader.cancelled() else reader.exception()
