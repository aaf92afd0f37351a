"""Checks values against the schemas of the broker's OpenAPI document: as much of JSON Schema as it uses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCUMENT = json.loads((Path(__file__).parents[3] / "server" / "src" / "openapi.json").read_text(encoding="utf-8"))

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}
_CHECKED = {
    "type", "enum", "const", "required", "properties", "additionalProperties", "items", "oneOf", "allOf", "$ref",
    "pattern", "minLength", "maxLength", "minimum", "maximum",
}  # fmt: skip
_IGNORED = {"description", "examples", "example", "format", "default", "contentEncoding", "title"}


def schema(name: str) -> dict[str, Any]:
    return DOCUMENT["components"]["schemas"][name]


def routes() -> dict[tuple[str, str], dict[str, Any]]:
    """The operations of the document by method and path."""
    return {
        (method.upper(), path): operation
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    }


def route_of(method: str, path: str) -> tuple[str, str]:
    """The operation that a request belongs to."""
    for known_method, known_path in routes():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(known_path))
        if known_method == method and re.fullmatch(pattern, path):
            return known_method, known_path
    raise AssertionError(f"no route {method} {path}")


def faults(value: Any, rule: Any, where: str = "$") -> list[str]:
    """What is wrong with a value; nothing if it is as the schema says."""
    unknown = rule.keys() - _CHECKED - _IGNORED
    assert not unknown, f"this check does not know {unknown}"
    if "$ref" in rule:
        return faults(value, schema(rule["$ref"].rsplit("/", 1)[1]), where)
    found = _scalar_faults(value, rule, where)
    if found:
        return found
    for part in rule.get("allOf", []):
        found += faults(value, part, where)
    if "oneOf" in rule:
        fitting = [part for part in rule["oneOf"] if not faults(value, part, where)]
        if len(fitting) != 1:
            found.append(f"{where}: fits {len(fitting)} of {len(rule['oneOf'])} alternatives: {value!r:.200}")
    if isinstance(value, dict):
        found += [f"{where}: lacks {name}" for name in rule.get("required", []) if name not in value]
        properties, others = rule.get("properties", {}), rule.get("additionalProperties", True)
        for name, entry in value.items():
            if name in properties:
                found += faults(entry, properties[name], f"{where}.{name}")
            elif others is False:
                found.append(f"{where}: has {name}, which is not in the document")
            elif isinstance(others, dict):
                found += faults(entry, others, f"{where}.{name}")
    if isinstance(value, list) and "items" in rule:
        for index, entry in enumerate(value):
            found += faults(entry, rule["items"], f"{where}[{index}]")
    return found


def _scalar_faults(value: Any, rule: dict[str, Any], where: str) -> list[str]:
    if "const" in rule and value != rule["const"]:
        return [f"{where}: is {value!r}, not {rule['const']!r}"]
    if "enum" in rule and value not in rule["enum"]:
        return [f"{where}: is {value!r}, not one of {rule['enum']}"]
    types = rule.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, name) for name in types):
        return [f"{where}: is {type(value).__name__}, not {types}"]
    found = []
    if isinstance(value, str):
        if "pattern" in rule and not re.search(rule["pattern"], value):
            found.append(f"{where}: {value!r} does not fit {rule['pattern']}")
        if not rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", len(value)):
            found.append(f"{where}: has {len(value)} characters")
    if isinstance(value, (int, float)) and not rule.get("minimum", value) <= value <= rule.get("maximum", value):
        found.append(f"{where}: {value} is out of bounds")
    return found


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])
