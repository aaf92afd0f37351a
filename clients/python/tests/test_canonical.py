from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from driftq import Misuse, canonical_json, idempotency_key, request_hash
from driftq.canonical import DEPTH_MAX, ecmascript_number, json_text

VECTORS = Path(__file__).parents[2] / "conformance" / "vectors"


def vectors(name: str) -> list[dict[str, Any]]:
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", vectors("idempotency_keys"), ids=lambda vector: str(vector["parts"])[:40])
def test_idempotency_key_is_that_of_the_shared_vector(vector: dict[str, Any]) -> None:
    if "error" in vector:
        with pytest.raises(Misuse):
            idempotency_key(*vector["parts"])
    else:
        assert idempotency_key(*vector["parts"]) == vector["key"]


@pytest.mark.parametrize("vector", vectors("request_hashes"), ids=lambda vector: vector["json"][:40])
def test_request_hash_is_that_of_the_shared_vector(vector: dict[str, Any]) -> None:
    value = json.loads(vector["json"])
    if "error" in vector:
        with pytest.raises(Misuse):
            request_hash(value)
    else:
        assert canonical_json(value) == vector["canonical"]
        assert request_hash(value) == vector["hash"]


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": math.nan}]}, "$.a[1].b"),
        ([math.inf], "$[0]"),
        ({"n": 2**53}, "$.n"),
        ({"n": 1e30}, "$.n"),
        ({"f": print}, "$.f"),
        ([b"bytes"], "$[0]"),
        ({"s": "\ud800"}, "$.s"),
        ({1: 2}, "$"),
        (cycle(), "$[0].again"),
        ({"set": {1}}, "$.set"),
    ],
)
def test_value_that_is_no_json_is_misuse_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(Misuse) as raised:
        canonical_json(value)
    assert raised.value.message.startswith(path)
    assert raised.value.kind == "misuse"


def test_value_nested_too_deeply_is_misuse_and_a_shared_part_is_not() -> None:
    deep: Any = 0
    for _ in range(DEPTH_MAX):
        deep = [deep]
    assert canonical_json(deep) == "[" * DEPTH_MAX + "0" + "]" * DEPTH_MAX
    with pytest.raises(Misuse):
        canonical_json([deep])
    shared = [1]
    assert canonical_json([shared, shared]) == "[[1],[1]]"


@pytest.mark.parametrize("part", ["\ud800", 1.5, None, b"x", ["a"]])
def test_part_that_has_no_text_is_misuse(part: Any) -> None:
    with pytest.raises(Misuse):
        idempotency_key("order", part)


def test_json_text_keeps_order_and_large_integers() -> None:
    assert json_text({"b": 2**60, "a": (1, None)}) == '{"b":1152921504606846976,"a":[1,null]}'


@pytest.mark.parametrize(
    ("number", "text"),
    # RFC 8785, appendix B, where the value is no integer beyond 2^53 - 1, and the forms with large exponents.
    [
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (1e21, "1e+21"),
        (999999999999999900000.0, "999999999999999900000"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (0.000001, "0.000001"),
        (333333333.33333325, "333333333.33333325"),
        (-0.0000033333333333333333, "-0.0000033333333333333333"),
        (1424953923781206.25, "1424953923781206.2"),
        (-0.0, "0"),
    ],
)
def test_number_is_written_as_ecmascript_does(number: float, text: str) -> None:
    assert ecmascript_number(number) == text
