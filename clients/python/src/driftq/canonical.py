"""Canonical JSON (RFC 8785), and the keys and hashes made of it: the same bytes in every language's client."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from driftq.errors import Misuse

SAFE_INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON implementation represents exactly."""

DEPTH_MAX = 127
"""How deep arrays and objects may be nested; the broker refuses what is deeper."""

IDEMPOTENCY_KEY_BYTES_MAX = 255


def idempotency_key(*parts: str | int | bool) -> str:
    """A key made of parts, unambiguous: different parts give different keys.

    Texts are percent-encoded, integers written in decimal, booleans as `true` and `false`, and all of it is joined by
    `:`. What would be longer than 255 bytes is replaced by its SHA-256.
    """
    if not parts or parts == ("",):
        raise Misuse("idempotency_key needs at least one part that is not empty")
    key = ":".join(_encoded_part(part, index) for index, part in enumerate(parts))
    if len(key) <= IDEMPOTENCY_KEY_BYTES_MAX:
        return key
    return "sha256:" + hashlib.sha256(key.encode("ascii")).hexdigest()


def _encoded_part(part: object, index: int) -> str:
    if isinstance(part, bool):
        return "true" if part else "false"
    if isinstance(part, int):
        return int.__repr__(part)
    if isinstance(part, str):
        try:
            return quote(part, safe="-._~")
        except UnicodeEncodeError:
            raise Misuse(f"part {index} of an idempotency key has a lone surrogate") from None
    raise Misuse(f"part {index} of an idempotency key is {type(part).__name__}; use str, int or bool")


def request_hash(value: Any) -> str:
    """The lower-case hex SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()


def canonical_json(value: Any) -> str:
    """The value in canonical JSON. A value that has none is a `Misuse` that names the path of the offending part.

    Numbers whose value is an integer beyond ±(2^53 - 1) have none: languages disagree about them.
    """
    parts: list[str] = []
    _Writer(parts.append, _exact_number, sort_keys=True).write(value, "$")
    return "".join(parts)


def json_text(value: Any) -> str:
    """The value in compact JSON, keys in their order, integers of any size; else `Misuse` as for `canonical_json`."""
    parts: list[str] = []
    _Writer(parts.append, _any_number, sort_keys=False).write(value, "$")
    return "".join(parts)


def _exact_number(number: int | float, path: str) -> str:
    if isinstance(number, int):
        if abs(number) > SAFE_INTEGER_MAX:
            raise Misuse(f"{path}: an integer beyond ±(2^53 - 1) is not the same in every language; send it as text")
        return int.__repr__(number)
    if not math.isfinite(number):
        raise Misuse(f"{path}: {number!r} is no JSON value")
    if abs(number) > SAFE_INTEGER_MAX:
        # Every double of this size is an integer, however it was spelled.
        raise Misuse(f"{path}: {number!r} is an integer beyond ±(2^53 - 1); send it as text")
    return ecmascript_number(number)


def _any_number(number: int | float, path: str) -> str:
    if isinstance(number, int):
        return int.__repr__(number)
    if not math.isfinite(number):
        raise Misuse(f"{path}: {number!r} is no JSON value")
    return ecmascript_number(number)


def ecmascript_number(number: float) -> str:
    """A finite double as ECMAScript's `Number.prototype.toString` writes it."""
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    if fraction == "0":
        fraction = ""
    digits = (whole + fraction).lstrip("0")
    # The decimal point stands behind this many digits.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if point > 0 else '-'}{abs(point - 1)}"


class _Writer:
    """Writes one value. Not `json.dumps`: that coerces keys, and does not say where in a value the fault is."""

    def __init__(
        self, emit: Callable[[str], None], number: Callable[[int | float, str], str], *, sort_keys: bool
    ) -> None:
        self._emit = emit
        self._number = number
        self._sort_keys = sort_keys
        self._open: list[int] = []

    def write(self, value: Any, path: str) -> None:
        if value is None:
            self._emit("null")
        elif isinstance(value, str):
            self._emit(_quoted(value, path))
        elif isinstance(value, bool):
            self._emit("true" if value else "false")
        elif isinstance(value, (int, float)):
            self._emit(self._number(value, path))
        elif isinstance(value, (list, tuple, dict)):
            self._enter(value, path)
            if isinstance(value, dict):
                self._write_object(value, path)
            else:
                self._write_array(value, path)
            self._open.pop()
        else:
            raise Misuse(f"{path}: {type(value).__name__} is no JSON value")

    def _enter(self, value: object, path: str) -> None:
        if id(value) in self._open:
            raise Misuse(f"{path}: the value contains itself")
        if len(self._open) == DEPTH_MAX:
            raise Misuse(f"{path[:80]}…: nested deeper than {DEPTH_MAX} levels")
        self._open.append(id(value))

    def _write_array(self, values: list[Any] | tuple[Any, ...], path: str) -> None:
        self._emit("[")
        for index, item in enumerate(values):
            if index:
                self._emit(",")
            self.write(item, f"{path}[{index}]")
        self._emit("]")

    def _write_object(self, fields: dict[Any, Any], path: str) -> None:
        for name in fields:
            if not isinstance(name, str):
                raise Misuse(f"{path}: the key {name!r} is {type(name).__name__}; keys are texts")
        quoted = {name: _quoted(name, path) for name in fields}
        # RFC 8785 sorts by UTF-16 code units, which differs from code points beyond the basic plane.
        names = sorted(fields, key=lambda name: name.encode("utf-16-be")) if self._sort_keys else list(fields)
        self._emit("{")
        for index, name in enumerate(names):
            self._emit("," + quoted[name] + ":" if index else quoted[name] + ":")
            self.write(fields[name], f"{path}.{name}")
        self._emit("}")


def _quoted(text: str, path: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise Misuse(f"{path}: a text with a lone surrogate is no JSON value") from None
    # The escapes of json.dumps are those of RFC 8785: short ones where there are, else \u00xx, and only below U+0020.
    return json.dumps(text, ensure_ascii=False)
