"""The requests that each outcome of a handler leads to, as a stub sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driftq import Context, Execute, Identity, Message, Output, Outputs, Permanent, Retry, scopes
from driftq.store import Decision
from stub import Reply, error, item
from support import asynchronous
from worker_stub import EXECUTE, IN_PROGRESS, STALE, WorkerStub, each, keyed, replay, run_until

TOKEN = f"{1:024x}"
GRANT = "f" * 24


def returning(value: Any) -> Any:
    async def handle(message: Message, context: Context) -> Any:
        return value

    return handle


def raising(error: Exception) -> Any:
    async def handle(message: Message, context: Context) -> None:
        raise error

    return handle


async def never(message: Message, context: Context) -> None:
    raise AssertionError("the handler must not run")


@asynchronous
async def test_begin_names_identity_and_delivery() -> None:
    async with WorkerStub(keyed(tenant_id="acme")) as stub:
        await run_until(stub, returning(None), "completed", lease=20)
        (begin,) = stub.received("/v1/idempotency/begin")
        assert begin.json == {
            "tenant_id": "acme",
            "scope": {"kind": "consume", "topic": "t", "group": "g"},
            "key": "order-1",
            "owner": "w",
            "lease_ms": 20_000,
            "delivery": {"partition": 0, "offset": 0, "lease_token": TOKEN},
        }
        consume = stub.received("/v1/consume")[0].query
        assert consume == {"topic": "t", "group": "g", "owner": "w", "lease_ms": "20000", "prefetch": "16"}


@asynchronous
async def test_delivery_whose_line_comes_twice_is_handled_once() -> None:
    async with WorkerStub(keyed(), keyed(), keyed(1, key="order-2")) as stub:
        await run_until(stub, returning(None), "completed", count=2)
        assert len([line for begin in stub.received("/v1/idempotency/begin") for line in begin.lines]) == 2
        assert [path for path, _ in stub.settling()] == ["complete", "complete"]


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (None, {}),
        ({"baked": [1, 2.5, None]}, {"result": {"baked": [1, 2.5, None]}}),
        ("text", {"result": "text"}),
        (0, {"result": 0}),
        (
            Outputs(Output(topic="next", json={"b": 1, "a": 2}, idempotency_key="k2", delay=1.5), result=7),
            {
                "result": 7,
                "produce": [
                    {
                        "topic": "next",
                        "value": '{"a":2,"b":1}',
                        "envelope": {"idempotency_key": "k2", "delay_ms": 1500},
                    }
                ],
            },
        ),
        (
            {"driftq": 1, "result": 2, "produce": []},
            {"result": {"driftq": 1, "result": {"driftq": 1, "result": 2, "produce": []}, "produce": []}},
        ),
    ],
    ids=["nothing", "object", "text", "zero", "outputs", "looks like outputs"],
)
@asynchronous
async def test_returned_value_completes(value: Any, fields: dict[str, Any]) -> None:
    async with WorkerStub(keyed()) as stub:
        events = await run_until(stub, returning(value), "completed")
        assert stub.settling() == [("complete", {"lease_token": TOKEN, **fields})]
        assert events.named("began")[0].fields["decision"] == "EXECUTE"


@pytest.mark.parametrize("entry", [item(), keyed()], ids=["no key", "scope none"])
@asynchronous
async def test_without_key_or_scope_nothing_is_begun(entry: dict[str, Any]) -> None:
    async with WorkerStub(entry) as stub:
        await run_until(stub, returning(1), "completed", scope="none" if "envelope" in entry else "consume")
        assert stub.received("/v1/idempotency/begin") == []
        assert stub.settling() == [("complete", {"lease_token": TOKEN, "result": 1})]


FAILED_RETRYABLE = {"lease_token": GRANT, "status": "FAILED_RETRYABLE"}


@pytest.mark.parametrize(
    ("failure", "text", "delay"),
    [
        (Retry("oven is cold"), "oven is cold", None),
        (Retry("later", delay=2.5), "later", 2500),
        (ValueError("bad"), "ValueError: bad", None),
        (KeyError(), "KeyError", None),
        (Retry("é" * 5000), "é" * 2048, None),
    ],
    ids=["retry", "retry with delay", "exception", "exception without text", "long text"],
)
@asynchronous
async def test_retryable_failure_finishes_then_nacks(failure: Exception, text: str, delay: int | None) -> None:
    async with WorkerStub(keyed()) as stub:
        await run_until(stub, raising(failure), "failed")
        nack = {"lease_token": TOKEN, "reason": text} | ({} if delay is None else {"delay_ms": delay})
        assert stub.settling() == [
            ("idempotency/finish", {**FAILED_RETRYABLE, "last_error": text}),
            ("nack", nack),
        ]


@asynchronous
async def test_retry_delay_of_the_worker_is_used_where_the_error_names_none() -> None:
    async with WorkerStub(item()) as stub:
        await run_until(stub, raising(Retry("x")), "failed", retry_delay=3.0)
        assert stub.settling() == [("nack", {"lease_token": TOKEN, "reason": "x", "delay_ms": 3000})]


DEAD = {"partition": 0, "offset": 0, "lease_token": TOKEN}


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (raising(Permanent("no such dish")), "no such dish"),
        (returning(float("nan")), "the handler's result: $: nan is no JSON value"),
        (returning({"a": [print]}), "the handler's result: $.a[0]: builtin_function_or_method is no JSON value"),
        (returning(b"x"), "the handler's result: $: bytes is no JSON value"),
        (returning(Outputs(Output(topic="t"))), "the handler's result: a message has either value or json"),
    ],
    ids=["permanent", "nan", "function", "bytes", "output without value"],
)
@asynchronous
async def test_permanent_failure_dead_letters_in_one_record(handler: Any, text: str) -> None:
    async with WorkerStub(keyed()) as stub:
        events = await run_until(stub, handler, "failed")
        finish = {"lease_token": GRANT, "status": "FAILED_FINAL", "last_error": text, "dead_letter": True}
        assert stub.settling() == [("idempotency/finish", {**finish, "delivery": DEAD})]
        assert events.named("failed")[0].fields["kind"] == "permanent"


@asynchronous
async def test_permanent_failure_without_the_store_is_a_nack() -> None:
    async with WorkerStub(item()) as stub:
        await run_until(stub, raising(Permanent("no")), "failed")
        assert stub.settling() == [("nack", {"lease_token": TOKEN, "reason": "no", "retryable": False})]


@asynchronous
async def test_permanent_failure_of_a_dead_letter_waits_for_another_attempt() -> None:
    async with WorkerStub(keyed()) as stub:
        from driftq import Client, Worker

        async with Client(stub.url) as client:
            worker = Worker(client, "dlq.t", "g", raising(Permanent("no")), stop_on=(), on_event=lambda e: stop(e))

            def stop(event: Any) -> None:
                if event.event == "failed":
                    worker.stop()

            await worker.run()
        assert [path for path, _ in stub.settling()] == ["idempotency/finish", "nack"]
        assert stub.settling()[1][1]["delay_ms"] == 30_000


@pytest.mark.parametrize(
    ("stored", "fields"),
    [
        ({"sent": 1}, {}),
        (
            {"driftq": 1, "result": 5, "produce": [{"topic": "n", "value": "v"}]},
            {"produce": [{"topic": "n", "value": "v"}]},
        ),
    ],
    ids=["result", "result with outputs"],
)
@asynchronous
async def test_replay_completes_without_running_the_handler(stored: Any, fields: dict[str, Any]) -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/idempotency/begin", each(replay("SUCCEEDED", stored)))
        await run_until(stub, never, "completed")
        assert stub.settling() == [("complete", {"lease_token": TOKEN, **fields})]


@asynchronous
async def test_replay_of_a_final_failure_dead_letters() -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/idempotency/begin", each(replay("FAILED_FINAL", last_error="no such dish")))
        await run_until(stub, never, "failed")
        assert stub.settling() == [("nack", {"lease_token": TOKEN, "reason": "no such dish", "retryable": False})]


@asynchronous
async def test_effect_in_progress_elsewhere_releases() -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/idempotency/begin", IN_PROGRESS)
        await run_until(stub, never, "released")
        assert stub.settling() == [("release", {"lease_token": TOKEN})]


@asynchronous
async def test_stale_begin_drops_the_delivery_without_a_request() -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/idempotency/begin", STALE)
        await run_until(stub, never, "lease_lost")
        assert stub.settling() == []


@asynchronous
async def test_refused_begin_nacks_with_the_refusal() -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/idempotency/begin", error(400, "INVALID_ARGUMENT", "key is too long"))
        await run_until(stub, never, "failed")
        assert stub.settling()[0][0] == "nack"


@asynchronous
async def test_retryable_effect_is_reacquired_and_run() -> None:
    retryable = {
        "decision": "RETRYABLE",
        "attempt": 1,
        "last_error": "e",
        "status": "FAILED_RETRYABLE",
        "status_v1": "FAILED",
    }
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/idempotency/begin", each(retryable))
        stub.on("POST", "/v1/idempotency/reacquire", Reply(body={**EXECUTE, "attempt": 2}))
        attempts = []

        async def handle(message: Message, context: Context) -> None:
            attempts.append(context.attempt)

        await run_until(stub, handle, "completed", scope=scopes.rpc("me", "/bake"))
        assert attempts == [2]
        assert stub.received("/v1/idempotency/begin")[0].json["scope"] == {
            "kind": "rpc",
            "principal": "me",
            "method": "/bake",
        }


@asynchronous
async def test_effect_of_another_scope_is_finished_with_its_outputs_before_the_complete() -> None:
    async with WorkerStub(keyed()) as stub:
        await run_until(
            stub, returning(Outputs(Output(topic="n", value="v"), result=3)), "completed", scope=scopes.tenant()
        )
        assert "delivery" not in stub.received("/v1/idempotency/begin")[0].json
        stored = {"driftq": 1, "result": 3, "produce": [{"topic": "n", "value": "v"}]}
        assert stub.settling() == [
            ("idempotency/finish", {"lease_token": GRANT, "status": "SUCCEEDED", "result": stored}),
            ("complete", {"lease_token": TOKEN, "result": 3, "produce": [{"topic": "n", "value": "v"}]}),
        ]


class MemoryStore:
    """A store that grants everything, and keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[Identity] = []
        self.finished: list[dict[str, Any]] = []

    async def begin(self, identity: Identity, **options: Any) -> Decision:
        self.begun.append(identity)
        return Execute(1, "token of the store", "")

    async def finish(self, identity: Identity, **outcome: Any) -> None:
        self.finished.append({name: value for name, value in outcome.items() if value})

    async def reacquire(self, identity: Identity, **options: Any) -> Execute:
        raise NotImplementedError

    async def renew(self, identity: Identity, **options: Any) -> str:
        return ""

    async def get(self, identity: Identity) -> None:
        return None

    async def forget(self, identity: Identity) -> bool:
        return False


@pytest.mark.parametrize(
    ("handler", "event", "finished", "settled"),
    [
        (returning(5), "completed", {"status": "SUCCEEDED", "result": 5}, ["complete"]),
        (raising(Permanent("no")), "failed", {"status": "FAILED_FINAL", "last_error": "no"}, ["nack"]),
    ],
    ids=["success", "permanent failure"],
)
@asynchronous
async def test_effect_in_another_store_is_ended_there_and_the_message_at_the_broker(
    handler: Any, event: str, finished: dict[str, Any], settled: list[str]
) -> None:
    store = MemoryStore()
    async with WorkerStub(keyed()) as stub:
        await run_until(stub, handler, event, store=store)
        assert stub.received("/v1/idempotency/begin") == []
        assert [path for path, _ in stub.settling()] == settled
    assert store.begun == [Identity(scopes.consume("t", "g"), "order-1")]
    assert store.finished == [{"lease_token": "token of the store", **finished}]


@asynchronous
async def test_outputs_carry_the_trace_of_their_message() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with WorkerStub(item(trace=trace)) as stub:
        await run_until(stub, returning(Outputs(Output(topic="n", value="v"))), "completed")
        assert stub.received("/v1/complete")[0].headers["traceparent"] == trace


@pytest.mark.parametrize(
    ("refusal", "path"),
    [
        (error(413, "PAYLOAD_TOO_LARGE", "result"), "idempotency/finish"),
        (error(404, "NOT_FOUND", "topic does not exist"), "nack"),
        (error(507, "STORAGE_FULL"), "nack"),
    ],
    ids=["too large", "unknown output topic", "disk full"],
)
@asynchronous
async def test_refused_complete_fails_the_attempt(refusal: Reply, path: str) -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/complete", refusal)
        await run_until(stub, returning(1), "failed")
        assert stub.settling()[-1][0] == path
        assert stub.settling()[-1][1].get("dead_letter", False) is (path != "nack")


@asynchronous
async def test_stale_complete_is_a_lost_lease() -> None:
    async with WorkerStub(keyed()) as stub:
        stub.on("POST", "/v1/complete", STALE)
        await run_until(stub, returning(1), "lease_lost")
        assert [path for path, _ in stub.settling()] == ["complete"]


@asynchronous
async def test_passed_deadline_is_a_retryable_failure_and_the_handler_does_not_run() -> None:
    async with WorkerStub(keyed(deadline="2020-01-01T00:00:00Z")) as stub:
        events = await run_until(stub, never, "failed")
        assert [path for path, _ in stub.settling()] == ["idempotency/finish", "nack"]
        assert stub.settling()[1][1]["reason"] == "deadline exceeded"
        assert events.named("failed")[0].fields["kind"] == "deadline"


@asynchronous
async def test_deadline_cancels_the_handler() -> None:
    from datetime import datetime, timedelta, timezone

    cancelled = asyncio.Event()

    async def handle(message: Message, context: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    soon = (datetime.now(timezone.utc) + timedelta(seconds=1)).isoformat()
    async with WorkerStub(item(envelope={"deadline": soon})) as stub:
        await run_until(stub, handle, "failed")
        assert cancelled.is_set()
        assert stub.settling() == [("nack", {"lease_token": TOKEN, "reason": "deadline exceeded"})]


@asynchronous
async def test_plain_function_runs_in_a_thread() -> None:
    import threading

    names = []

    def handle(message: Message, context: Context) -> dict[str, int]:
        names.append(threading.current_thread().name)
        return {"n": 1}

    async with WorkerStub(keyed()) as stub:
        await run_until(stub, handle, "completed")
        assert stub.settling() == [("complete", {"lease_token": TOKEN, "result": {"n": 1}})]
    assert names[0].startswith("driftq-handler")


@asynchronous
async def test_event_hook_that_raises_does_not_disturb_the_work() -> None:
    from driftq import Client, Worker

    async with WorkerStub(keyed()) as stub, Client(stub.url) as client:

        def hook(event: Any) -> None:
            if event.event == "completed":
                worker.stop()
            raise RuntimeError("hook")

        worker = Worker(client, "t", "g", returning(1), on_event=hook, stop_on=())
        await worker.run()
        assert [path for path, _ in stub.settling()] == ["complete"]
