"""Events for metrics and logs, and how they are reported without harm to the work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("driftq")

_LEVELS = {
    "disconnected": logging.WARNING,
    "protocol": logging.WARNING,
    "failed": logging.WARNING,
    "lease_lost": logging.WARNING,
    "handler_stuck": logging.WARNING,
    "loop_blocked": logging.WARNING,
    "request_retried": logging.INFO,
    "connected": logging.INFO,
}

_TEXTS = {
    "disconnected": "the stream is disconnected and opened again",
    "protocol": "the stream has a line that is no message and is opened again",
    "failed": "an attempt has failed",
    "lease_lost": "the lease is lost, and the result of its handler is discarded",
    "handler_stuck": "a handler ignores its cancellation and keeps its slot",
    "loop_blocked": "a handler blocks the event loop, so that heartbeats are late",
    "request_retried": "a request is repeated",
    "connected": "the stream is connected",
}
"""What the log says of an event; of others it says their name."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in the client. `fields` never has a key, a payload or a result."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The event as one flat object."""
        return {"event": self.event, **self.fields}


EventHook = Callable[[Event], None]


class Reporter:
    """Passes events to the hook and to the log. A hook that raises is logged and does not disturb the work."""

    def __init__(self, hook: EventHook | None = None, **context: Any) -> None:
        self._hook = hook
        self._context = context

    def has_hook_of(self, other: Reporter) -> bool:
        """Whether both report to the same hook."""
        return self._hook == other._hook

    def report(self, event: str, **fields: Any) -> None:
        """Reports one event."""
        level = _LEVELS.get(event, logging.DEBUG)
        if logger.isEnabledFor(level):
            told = {**self._context, **fields}
            details = "".join(f" {name}={value!r}" for name, value in told.items())
            # As an argument: a text with a per cent sign must not be read as a format.
            logger.log(level, "%s", _TEXTS.get(event, event) + details, extra={"driftq": {"event": event, **told}})
        if self._hook is not None:
            try:
                self._hook(Event(event, fields))
            except Exception:
                logger.exception("the event hook failed on %s", event)
