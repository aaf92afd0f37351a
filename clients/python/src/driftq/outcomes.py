"""What a handler may return or raise, and how results with outputs are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from driftq.messages import Output

WRAPPER_VERSION = 1
"""The version of the object in which a stored result carries the outputs of its step."""

_WRAPPER_FIELDS = {"driftq", "result", "produce"}


class Retry(Exception):
    """Raised by a handler: this attempt failed, another may succeed. `delay` is in seconds."""

    def __init__(self, reason: str, delay: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = delay


class Permanent(Exception):
    """Raised by a handler: no attempt can succeed. The message is dead-lettered."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, init=False)
class Outputs:
    """Returned by a handler: the next step's messages, produced in one record with the end of this one."""

    messages: Sequence[Output] = field(default_factory=tuple)
    result: Any = None

    def __init__(self, *messages: Output, result: Any = None) -> None:
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "result", result)


def wrapped(result: Any, produce: Sequence[Mapping[str, Any]]) -> Any:
    """The value that is stored for a result and outputs: the result itself where there are no outputs."""
    if produce or _is_wrapper(result):
        return {"driftq": WRAPPER_VERSION, "result": result, "produce": list(produce)}
    return result


def unwrapped(stored: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The result and the outputs of a stored value."""
    if _is_wrapper(stored):
        return stored["result"], stored["produce"]
    return stored, []


def _is_wrapper(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == _WRAPPER_FIELDS
        and value["driftq"] == WRAPPER_VERSION
        and isinstance(value["produce"], list)
    )
