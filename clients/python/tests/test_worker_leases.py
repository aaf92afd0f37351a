"""Heartbeats, lost leases, stops and limits, with a stub broker and short leases."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from driftq import Client, Context, Message, NotFound, Unauthenticated, Unavailable, Worker
from driftq.events import Reporter
from driftq.heartbeat import BEATS_PER_LEASE, Heartbeat
from driftq.slots import Slots
from stub import Reply, Request, Stream, error, item, line
from support import Events, asynchronous
from worker_stub import IN_PROGRESS, STALE, WorkerStub, keyed, replay, run_until

LEASE = 0.6
BLOCKED_LEASE = 1.5
"""Long enough that no heartbeat is under way when the handler starts, also on a machine with much to do."""


async def forever(message: Message, context: Context) -> None:
    await asyncio.Event().wait()


async def stubbornly(release: asyncio.Event) -> None:
    """Waits, and ignores being cancelled; not for ever, so that a failing test ends."""
    for _ in range(5):
        try:
            await release.wait()
            return
        except asyncio.CancelledError:
            continue


@asynchronous
async def test_long_handler_keeps_lease_and_effect_alive() -> None:
    fifth = asyncio.Event()

    async def handle(message: Message, context: Context) -> str:
        await fifth.wait()
        return "done"

    async with WorkerStub(keyed()) as stub:

        def extended(request: Request) -> Reply:
            if len(stub.received("/v1/extend")) == 5:
                fifth.set()
            return Reply(body={"lease_until": "x"})

        stub.on("POST", "/v1/extend", extended)

        started = asyncio.get_running_loop().time()
        await run_until(stub, handle, "completed", lease=LEASE)
        assert asyncio.get_running_loop().time() - started >= 5 * LEASE / 3
        assert stub.received("/v1/extend")[0].json["lease_ms"] == 600
        renewed = stub.received("/v1/idempotency/renew")[0].json
        assert (renewed["lease_token"], renewed["key"]) == ("f" * 24, "order-1")
        assert [path for path, _ in stub.settling()] == ["complete"]


@pytest.mark.parametrize("path", ["/v1/extend", "/v1/idempotency/renew"])
@pytest.mark.parametrize("refusal", [STALE, error(404, "NOT_FOUND")], ids=["409", "404"])
@asynchronous
async def test_refused_heartbeat_cancels_the_handler_and_nothing_is_sent(path: str, refusal: Reply) -> None:
    cancelled = []

    async def handle(message: Message, context: Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(context.cancelled())
        return "a result that nobody may see"

    async with WorkerStub(keyed()) as stub:
        stub.on("POST", path, refusal)
        await run_until(stub, handle, "lease_lost", lease=LEASE)
        assert cancelled == [True]
        assert stub.settling() == []


@asynchronous
async def test_lease_is_lost_when_no_heartbeat_succeeds_for_a_whole_lease() -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/extend", error(503, "UNAVAILABLE"))
        started = asyncio.get_running_loop().time()
        await run_until(stub, forever, "lease_lost", lease=LEASE)
        assert asyncio.get_running_loop().time() - started >= LEASE
        assert stub.settling() == []
        assert len(stub.received("/v1/extend")) >= 2


@asynchronous
async def test_heartbeat_that_is_not_answered_loses_the_lease_in_time() -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/extend", Reply(body={}, delay=30))
        started = asyncio.get_running_loop().time()
        await run_until(stub, forever, "lease_lost", lease=LEASE)
        assert LEASE <= asyncio.get_running_loop().time() - started < 10 * LEASE


@asynchronous
async def test_handler_that_blocks_the_loop_beyond_its_lease_loses_it() -> None:
    async def handle(message: Message, context: Context) -> str:
        time.sleep(2 * BLOCKED_LEASE)  # noqa: ASYNC251 - to block the loop is the purpose
        return "too late"

    async with WorkerStub(keyed()) as stub:
        events = await run_until(stub, handle, "lease_lost", lease=BLOCKED_LEASE)
        assert stub.settling() == []
        (blocked,) = events.named("loop_blocked")
        assert blocked.fields["seconds"] >= BLOCKED_LEASE


@asynchronous
async def test_handler_that_blocks_the_loop_within_its_lease_is_reported_and_completes() -> None:
    async def handle(message: Message, context: Context) -> str:
        time.sleep(0.8 * BLOCKED_LEASE)  # noqa: ASYNC251 - to block the loop is the purpose
        return "in time"

    async with WorkerStub(keyed()) as stub:
        events = await run_until(stub, handle, "completed", lease=BLOCKED_LEASE)
        assert len(events.named("loop_blocked")) == 1


@asynchronous
async def test_handler_that_ignores_its_cancellation_keeps_its_slot_and_is_reported() -> None:
    release = asyncio.Event()
    running = 0
    most = 0

    async def handle(message: Message, context: Context) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if message.offset == 0:
            await stubbornly(release)
        running -= 1
        return "done"

    async with WorkerStub(item(0), item(1)) as stub:
        # Only the first message's lease is refused.
        stub.on(
            "POST",
            "/v1/extend",
            lambda request: STALE if request.json["offset"] == 0 else Reply(body={"lease_until": "x"}),
        )
        events = Events()
        async with Client(stub.url) as client:
            worker = Worker(client, "t", "g", handle, on_event=events, stop_on=(), concurrency=1, lease=LEASE)
            task = asyncio.create_task(worker.run())
            await events.wait_for("handler_stuck")
            assert events.named("completed") == []
            release.set()
            await events.wait_for("completed")
            worker.stop()
            await task
        assert most == 1
        assert [path for path, _ in stub.settling()] == ["complete"]


@asynchronous
async def test_newer_delivery_of_a_message_ends_the_older_one() -> None:
    started = asyncio.Event()

    async def handle(message: Message, context: Context) -> str:
        if message.attempts == 1:
            started.set()
            await asyncio.Event().wait()
        return "second"

    async def second(_: Any) -> Stream:
        await started.wait()
        return Stream([line(item(0, token=2, attempts=2))], hold=True)

    async with WorkerStub() as stub:
        stub.on("GET", "/v1/consume", Stream([line(item(0, token=1))], cut=True), second)
        events = await run_until(stub, handle, "completed")
        assert len(events.named("lease_lost")) == 1
        assert [fields["lease_token"] for _, fields in stub.settling()] == [f"{2:024x}"]


@asynchronous
async def test_stop_releases_what_has_not_begun_and_waits_for_what_has() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(message: Message, context: Context) -> str:
        started.set()
        await release.wait()
        return "done"

    async with WorkerStub(*(item(n) for n in range(3))) as stub, Client(stub.url) as client:
        events = Events()
        worker = Worker(client, "t", "g", handle, on_event=events, stop_on=(), concurrency=1)
        task = asyncio.create_task(worker.run())
        await started.wait()
        await events.wait_for("received", 3)
        worker.stop()
        await events.wait_for("released", 2)
        assert not task.done()
        release.set()
        await task
        assert sorted(path for path, _ in stub.settling()) == ["complete", "release", "release"]


@asynchronous
async def test_handler_cancelled_by_the_stop_is_released_and_its_effect_recorded() -> None:
    async with WorkerStub(keyed()) as stub:
        await run_until(stub, forever, "began", grace=0.1)
        assert stub.settling() == [
            ("idempotency/finish", {"lease_token": "f" * 24, "status": "FAILED_RETRYABLE", "last_error": "shutdown"}),
            ("release", {"lease_token": f"{1:024x}"}),
        ]


@asynchronous
async def test_handler_that_ends_in_the_grace_completes() -> None:
    async with WorkerStub(keyed()) as stub:

        async def handle(message: Message, context: Context) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "quick end"
            return ""

        await run_until(stub, handle, "began", grace=0)
        assert [path for path, _ in stub.settling()] == ["complete"]


@asynchronous
async def test_stop_abandons_a_stubborn_handler_when_its_lease_has_run_out() -> None:
    release = asyncio.Event()

    async def handle(message: Message, context: Context) -> None:
        await stubbornly(release)

    async with WorkerStub(keyed()) as stub:
        started = asyncio.get_running_loop().time()
        events = await run_until(stub, handle, "began", grace=0, lease=LEASE)
        assert asyncio.get_running_loop().time() - started < 10 * LEASE
        assert len(events.named("handler_stuck")) == 1
        assert stub.settling() == []
        release.set()


@asynchronous
async def test_stop_ends_although_the_broker_does_not_answer_any_more() -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/complete", Reply(reset=True))
        stub.on("POST", "/v1/extend", Reply(reset=True))
        stub.on("POST", "/v1/idempotency/finish", Reply(reset=True))

        async def handle(message: Message, context: Context) -> str:
            return "x"

        started = asyncio.get_running_loop().time()
        await run_until(stub, handle, "began", grace=0, lease=LEASE, retry_for=60)
        assert asyncio.get_running_loop().time() - started < 10 * LEASE


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@asynchronous
async def test_signal_stops_the_worker_and_handlers_of_signals_are_restored() -> None:
    async with WorkerStub(keyed()) as stub, Client(stub.url) as client:
        before = signal.getsignal(signal.SIGTERM)
        events = Events()
        worker = Worker(client, "t", "g", forever, on_event=events, grace=0.05)
        task = asyncio.create_task(worker.run())
        await events.wait_for("began")
        os.kill(os.getpid(), signal.SIGTERM)
        await task
        assert signal.getsignal(signal.SIGTERM) == before
        assert len(events.named("released")) == 1


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@asynchronous
async def test_signal_stops_all_workers_of_a_loop_also_after_one_has_ended() -> None:
    async with (
        WorkerStub(keyed()) as one,
        WorkerStub(keyed()) as two,
        WorkerStub(keyed()) as three,
        Client(one.url) as first,
        Client(two.url) as second,
        Client(three.url) as third,
    ):
        before = signal.getsignal(signal.SIGTERM)
        observed = [Events(), Events(), Events()]
        workers = [
            Worker(client, "t", "g", forever, on_event=events, grace=0.05)
            for client, events in zip((first, second, third), observed, strict=True)
        ]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        for events in observed:
            await events.wait_for("began")
        workers[2].stop()
        await tasks[2]
        assert not any(task.done() for task in tasks[:2])
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert signal.getsignal(signal.SIGTERM) == before
        assert [len(events.named("released")) for events in observed] == [1, 1, 1]


@asynchronous
async def test_cancelled_run_shuts_down_as_a_stop_does() -> None:
    async with WorkerStub(keyed()) as stub, Client(stub.url) as client:
        events = Events()
        worker = Worker(client, "t", "g", forever, on_event=events, grace=0.05, stop_on=())
        task = asyncio.create_task(worker.run())
        await events.wait_for("began")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [path for path, _ in stub.settling()] == ["idempotency/finish", "release"]


@pytest.mark.parametrize(
    ("status", "expected"), [(404, NotFound), (401, Unauthenticated)], ids=["unknown topic", "revoked key"]
)
@asynchronous
async def test_error_that_no_retry_mends_ends_the_run(status: int, expected: type[Exception]) -> None:
    async with WorkerStub() as stub, Client(stub.url) as client:
        stub.on("GET", "/v1/consume", error(status, "X"))
        with pytest.raises(expected):
            await Worker(client, "t", "g", forever, stop_on=()).run()


@asynchronous
async def test_handlers_of_one_key_follow_each_other_and_others_do_not_wait() -> None:
    order: list[int] = []
    others = asyncio.Event()

    async def handle(message: Message, context: Context) -> None:
        if message.offset == 0:
            await others.wait()
        order.append(message.offset)
        if message.key == "b":
            others.set()

    deliveries = [item(n, key="a") for n in range(3)] + [item(3, key="b")]
    async with WorkerStub(*deliveries) as stub:
        await run_until(stub, handle, "completed", 4, per_key_order=True, concurrency=4)
    assert order == [3, 0, 1, 2]


@asynchronous
async def test_thread_is_told_that_its_lease_is_lost() -> None:
    told = threading.Event()

    def handle(message: Message, context: Context) -> None:
        while not context.cancelled():
            time.sleep(0.01)
        told.set()

    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/extend", STALE)
        await run_until(stub, handle, "lease_lost", lease=LEASE)
        assert told.is_set()
        assert stub.settling() == []


@asynchronous
async def test_heartbeat_counts_from_the_sending_of_the_last_success() -> None:
    loop = asyncio.get_running_loop()
    lost = asyncio.Event()
    beats: list[float] = []

    async def beat() -> None:
        beats.append(loop.time())
        if len(beats) > 1:
            raise Unavailable("no")

    received = loop.time()
    heartbeat = Heartbeat(lease=LEASE, received=received, beat=beat, on_lost=lost.set, reporter=Reporter())
    await lost.wait()
    # The loop runs a timer as much as the clock's resolution early.
    first_sent = received + LEASE / BEATS_PER_LEASE - 1e-6
    assert beats[0] >= first_sent
    assert loop.time() >= first_sent + LEASE
    assert heartbeat.lost
    assert not heartbeat.check()


@asynchronous
async def test_slots_are_given_in_order_and_close_refuses_the_rest() -> None:
    slots = Slots(1)
    assert await slots.acquire()
    first = asyncio.create_task(slots.acquire("k"))
    second = asyncio.create_task(slots.acquire("k"))
    third = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)
    slots.release()
    assert await first
    assert not second.done()
    slots.close()
    assert [await second, await third, await slots.acquire()] == [False, False, False]
    slots.release("k")


@asynchronous
async def test_lease_runs_from_the_sending_of_a_heartbeat_not_from_its_answer() -> None:
    loop = asyncio.get_running_loop()
    lost = asyncio.Event()
    lease = 2 * LEASE
    answered: list[float] = []

    async def beat() -> None:
        if answered:
            raise Unavailable("no")
        await asyncio.sleep(lease / 2)
        answered.append(loop.time())

    Heartbeat(lease=lease, received=loop.time(), beat=beat, on_lost=lost.set, reporter=Reporter())
    await lost.wait()
    assert loop.time() < answered[0] + lease


@asynchronous
async def test_lease_is_checked_by_the_clock_before_any_timer_runs() -> None:
    events = Events()
    heartbeat = Heartbeat(
        lease=LEASE,
        received=asyncio.get_running_loop().time(),
        beat=asyncio.Event().wait,  # type: ignore[arg-type]
        on_lost=lambda: None,
        reporter=Reporter(events),
    )
    time.sleep(LEASE)  # noqa: ASYNC251 - to block the loop is the purpose
    assert not heartbeat.check()
    assert len(events.named("loop_blocked")) == 1


@pytest.mark.parametrize(("owner", "waits"), [("w", False), ("other", True)])
@asynchronous
async def test_slot_pauses_for_another_worker_but_not_for_its_own_lost_begin(owner: str, waits: bool) -> None:
    in_progress = error(409, "FAILED_PRECONDITION", "busy", decision="IN_PROGRESS", retry_after_ms=60_000)
    effect = {
        "status": "IN_PROGRESS", "status_v1": "PENDING", "attempt": 1, "owner": owner, "lease_until": None,
        "result": None, "response_code": 0, "last_error": "", "request_hash": None, "updated_at": "", "expires_at": "",
    }  # fmt: skip

    async def handle(message: Message, context: Context) -> None: ...

    async with WorkerStub(keyed(0), item(1)) as stub, Client(stub.url) as client:
        stub.on("POST", "/v1/idempotency/begin", in_progress)
        stub.on("GET", "/v1/idempotency", Reply(body=effect))
        events = Events()
        worker = Worker(client, "t", "g", handle, on_event=events, owner="w", stop_on=(), concurrency=1)
        task = asyncio.create_task(worker.run())
        await events.wait_for("released")
        if waits:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(events.wait_for("completed"), 0.5)
        else:
            await events.wait_for("completed")
        worker.stop()
        await task


@pytest.mark.parametrize(
    "answer", [IN_PROGRESS, Reply(body=replay("FAILED_FINAL", last_error="no")), Reply(body=replay("SUCCEEDED"))]
)
@asynchronous
async def test_nothing_is_sent_for_a_lease_that_was_lost_before_its_begin_was_answered(answer: Reply) -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/extend", error(503, "UNAVAILABLE"))
        stub.on("POST", "/v1/idempotency/begin", replace(answer, delay=2 * LEASE))
        await run_until(stub, forever, "lease_lost", lease=LEASE)
        assert stub.settling() == []


@pytest.mark.parametrize("turns", range(6))
@asynchronous
async def test_heartbeat_stopped_while_its_beat_is_answered_sends_no_other(turns: int) -> None:
    loop = asyncio.get_running_loop()
    beating, answered = asyncio.Event(), asyncio.Event()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        beats += 1
        beating.set()
        await answered.wait()

    lease = 0.15
    lost = asyncio.Event()
    heartbeat = Heartbeat(lease=lease, received=loop.time(), beat=beat, on_lost=lost.set, reporter=Reporter())
    await beating.wait()
    answered.set()
    # The answer passes from task to task, a turn of the loop each.
    for _ in range(turns):
        await asyncio.sleep(0)
    heartbeat.stop()
    await asyncio.sleep(2 * lease / BEATS_PER_LEASE)
    assert beats == 1
    assert not lost.is_set()
