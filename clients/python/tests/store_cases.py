"""Runs the cases that every store passes: `clients/conformance/store_cases.json`, described beside it.

A test module gives them a store, as `class TestX(StoreCases)` with `store()` and `crash()`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from driftq import DriftqError, Execute, Identity, InProgressElsewhere, Replay, Retryable, Store
from driftq.rfc3339 import timestamp
from driftq.scopes import scope_of
from support import asynchronous

Fields = dict[str, Any]

CASES = json.loads((Path(__file__).parents[2] / "conformance" / "store_cases.json").read_text(encoding="utf-8"))

STEPS = frozenset({"begin", "reacquire", "finish", "renew", "get", "forget", "wait", "crash", "race"})


class StoreCases:
    """The cases."""

    def store(self) -> AbstractAsyncContextManager[Store]:
        """The store under test."""
        raise NotImplementedError

    def crash(self) -> None:
        """Kills the server of the store, and starts it again."""
        raise NotImplementedError

    @asynchronous
    async def test_it_is_a_store(self) -> None:
        async with self.store() as store:
            assert isinstance(store, Store)

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
    @asynchronous
    async def test_case(self, case: Fields) -> None:
        async with self.store() as store:
            run = Run(store, self.crash, case.get("effects", {"a": {}}))
            for number, step in enumerate(case["steps"]):
                try:
                    await run.step(step)
                except (AssertionError, DriftqError, pytest.fail.Exception) as error:
                    raise AssertionError(f"step {number}, {step}: {error}") from error


class Run:
    """One run of a case."""

    def __init__(self, store: Store, crash: Any, effects: dict[str, Fields]) -> None:
        self._store = store
        self._crash = crash
        self._grants: dict[str, str] = {}
        suffix = uuid.uuid4().hex
        self._identities = {name: _identity(fields, suffix) for name, fields in effects.items()}

    async def step(self, step: Fields) -> None:
        """Does a step and checks what is expected of it."""
        assert step["do"] in STEPS
        match step["do"]:
            case "wait":
                await asyncio.sleep(step["ms"] / 1000)
            case "crash":
                await asyncio.to_thread(self._crash)
            case "race":
                await self._race(step)
            case _:
                await self._call_and_check(step)

    async def _race(self, step: Fields) -> None:
        steps = step.get("steps") or [step["step"]] * step["times"]
        outcomes = await asyncio.gather(*(self._outcome({"owner": f"w{n}", **one}) for n, one in enumerate(steps)))
        assert dict(Counter(outcomes)) in step["outcomes"], dict(Counter(outcomes))

    async def _outcome(self, step: Fields) -> str:
        try:
            answer = await self._call(step)
        except DriftqError as error:
            return error.kind
        return str(answer.get("decision", "ok"))

    async def _call_and_check(self, step: Fields) -> None:
        expected = step.get("expect", {})
        if "error" in expected:
            with pytest.raises(DriftqError) as raised:
                await self._call(step)
            found = {"error": raised.value.kind, "status": raised.value.status, "code": raised.value.code}
            assert {name: found[name] for name in expected} == expected
            return
        answer = await self._call(step)
        for name, value in expected.items():
            match name:
                case "newer_than":
                    assert answer["lease_token"] > self._grants[value], "the token is not newer"
                case "retry_after_ms_max":
                    assert 0 < answer["retry_after"] * 1000 <= value, answer
                case "result_bytes":
                    assert len(answer["result"]) + 2 == value, "the length of the result"
                case "kept_for_ms":
                    assert _milliseconds_between(answer["updated_at"], answer["expires_at"]) == value
                case "leased_for_ms":
                    assert _milliseconds_between(answer["updated_at"], answer["lease_until"]) == value
                case _:
                    assert name in answer, f"{name} is not in {answer}"
                    assert (type(answer[name]), answer[name]) == (type(value), value), answer
        if "as" in step:
            self._grants[step["as"]] = answer["lease_token"]

    async def _call(self, step: Fields) -> Fields:
        of = self._identities[step.get("effect", "a")]
        owner, lease = step.get("owner", "w"), step.get("lease_ms", 0) / 1000
        token = self._grants.get(step.get("token", ""), step.get("token", ""))
        match step["do"]:
            case "begin":
                return await self._begin(of, step, owner, lease)
            case "reacquire":
                return _fields(await self._store.reacquire(of, owner=owner, lease=lease), decision="EXECUTE")
            case "finish":
                size, error_size = step.get("result_bytes"), step.get("last_error_bytes")
                await self._store.finish(
                    of,
                    lease_token=token,
                    status=step["status"],
                    result=step.get("result") if size is None else "x" * (size - 2),
                    response_code=step.get("response_code"),
                    last_error=step.get("last_error") if error_size is None else "x" * error_size,
                )
            case "renew":
                await self._store.renew(of, lease_token=token, lease=lease)
            case "get":
                effect = await self._store.get(of)
                return {"unknown": True} if effect is None else _fields(effect)
            case "forget":
                return {"known": await self._store.forget(of)}
        return {}

    async def _begin(self, of: Identity, step: Fields, owner: str, lease: float) -> Fields:
        ttl_ms = step.get("ttl_ms")
        decision = await self._store.begin(
            of,
            owner=owner,
            lease=lease,
            ttl=None if ttl_ms is None else ttl_ms / 1000,
            request_hash=step.get("request_hash"),
            on_expired=step.get("on_expired"),
        )
        names = {Execute: "EXECUTE", Replay: "REPLAY", InProgressElsewhere: "IN_PROGRESS", Retryable: "RETRYABLE"}
        return _fields(decision, decision=names[type(decision)])


def _milliseconds_between(first: str, second: str) -> int:
    start, end = timestamp(first), timestamp(second)
    assert start is not None
    assert end is not None
    return round((end - start) * 1000)


def _fields(answer: Any, **more: str) -> Fields:
    return {name: getattr(answer, name) for name in answer.__dataclass_fields__} | more


def _identity(fields: Fields, suffix: str) -> Identity:
    scope = scope_of(fields.get("scope", {"kind": "tenant"}))
    key = fields.get("key", "k")
    if "key_bytes" in fields:
        key = suffix.ljust(fields["key_bytes"], "x")
    elif key:
        key = f"{key}-{suffix}"
    return Identity(scope, key, fields.get("tenant", ""))
