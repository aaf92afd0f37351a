from __future__ import annotations

import json
from typing import Any

import pytest

from driftq.errors import error_of_answer, may_be_sent_again


def body(**fields: Any) -> bytes:
    return json.dumps({"error": "CODE", "message": "why", **fields}).encode()


@pytest.mark.parametrize(
    ("status", "fields", "kind", "safe"),
    [
        (400, {}, "invalid", False),
        (405, {}, "invalid", False),
        (413, {}, "invalid", False),
        (422, {}, "invalid", False),
        (401, {}, "unauthenticated", False),
        (403, {}, "permission_denied", False),
        (404, {}, "not_found", False),
        (409, {"message": "topic exists with 1 partitions"}, "conflict", False),
        (409, {"message": "stale lease"}, "stale_lease", False),
        (409, {"message": "not owner"}, "stale_lease", False),
        (409, {"decision": "IN_PROGRESS"}, "in_progress", True),
        (429, {}, "overloaded", True),
        (503, {"committed": "no"}, "unavailable", True),
        (503, {}, "unknown", False),
        (503, {"committed": "unknown"}, "unknown", False),
        (507, {}, "storage_full", True),
        (500, {}, "unknown", False),
    ],
)
def test_answer_has_the_kind_of_the_contract(status: int, fields: dict[str, Any], kind: str, safe: bool) -> None:
    error = error_of_answer(status, body(**fields))
    assert (error.kind, error.retry_is_safe, error.status, error.code) == (kind, safe, status, "CODE")


def test_unknown_outcome_may_be_retried_only_if_the_request_cannot_double() -> None:
    assert error_of_answer(503, body(), repeatable=True).retry_is_safe
    assert not error_of_answer(503, body(), repeatable=False).retry_is_safe


@pytest.mark.parametrize(
    ("status", "fields", "alone", "repeatable"),
    [
        (429, {}, True, True),
        (503, {"committed": "no"}, True, True),
        (503, {}, False, True),
        (502, {}, False, True),
        (500, {}, False, False),
        (507, {}, False, False),
        (409, {"decision": "IN_PROGRESS"}, False, False),
        (400, {}, False, False),
    ],
)
def test_request_is_repeated_as_the_contract_says(
    status: int, fields: dict[str, Any], alone: bool, repeatable: bool
) -> None:
    error = error_of_answer(status, body(**fields))
    assert may_be_sent_again(error, repeatable=False) is alone
    assert may_be_sent_again(error, repeatable=True) is repeatable


@pytest.mark.parametrize("status", [200 + 204, 400, 409])
def test_error_that_is_no_json_is_a_protocol_error_that_quotes_it(status: int) -> None:
    error = error_of_answer(status, b"<html>not here" + b"x" * 500)
    assert error.kind == "protocol"
    assert "<html>not here" in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "unauthenticated"), (429, "overloaded"), (502, "unknown"), (400, "invalid")]
)
def test_error_of_a_proxy_without_json_has_the_kind_of_its_status(status: int, kind: str) -> None:
    assert error_of_answer(status, b"").kind == kind


def test_retry_after_is_the_longer_of_header_and_body() -> None:
    assert error_of_answer(429, body(retry_after_ms=1500), 1.0).retry_after == 1.5
    assert error_of_answer(429, body(), 3.0).retry_after == 3.0
