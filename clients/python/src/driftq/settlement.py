"""The bodies of requests that end a delivery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftq.canonical import json_text
from driftq.connection import encoded_with
from driftq.errors import ProtocolError
from driftq.messages import Message, Produced, produced_of

LAST_ERROR_BYTES_MAX = 4096


def claim(message: Message, group: str, owner: str) -> dict[str, Any]:
    """The fields that name a delivery."""
    fields: dict[str, Any] = {
        "topic": message.topic,
        "group": group,
        "partition": message.partition,
        "offset": message.offset,
        "owner": owner,
    }
    if message.lease_token:
        fields["lease_token"] = message.lease_token
    return fields


def complete_body(
    message: Message, group: str, owner: str, *, result: Any = None, produce: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """The JSON of a complete. A result that is no JSON is `Misuse`, with its path."""
    body = claim(message, group, owner)
    if produce:
        body["produce"] = list(produce)
    return encoded_with(body, result=None if result is None else json_text(result))


def completed_of(fields: Any) -> list[Produced]:
    """Where the messages of a complete were stored."""
    try:
        return [produced_of(entry) for entry in fields["produced"]]
    except (KeyError, TypeError):
        raise ProtocolError("the answer of a complete lacks 'produced'") from None


def truncated(text: str) -> str:
    """A text of at most 4 KiB of UTF-8, as the broker keeps of an error."""
    encoded_text = text.encode("utf-8", "replace")
    return encoded_text[:LAST_ERROR_BYTES_MAX].decode("utf-8", "ignore")
