"""Topics, groups, dead letters, and what the broker says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode

from driftq.connection import Connection
from driftq.errors import DriftqError, Misuse, ProtocolError, UnknownOutcome
from driftq.messages import Message, message_of

DEFAULT: Any = object()
"""Stands for the server's default in `Topics.change`."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings that a topic has; `None` is no limit."""

    name: str
    retention_ms: int | None
    retention_bytes: int | None
    partitions: int | None = None


class Topics:
    """`client.topics`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> TopicSettings:
        """Creates a topic, or returns its settings if it exists with those given; else `Conflict`."""
        body = {"name": topic, "partitions": partitions}
        body |= {"retention_ms": retention_ms, "retention_bytes": retention_bytes}
        given = {name: value for name, value in body.items() if value is not None}
        return _settings_of(await self._connection.request_json("POST", "/v1/topics", json_body=given, repeatable=True))

    async def list(self, *, limit: int | None = None, after: str | None = None) -> list[str]:
        """The names of the topics in byte order; with `limit`, so many of them behind `after`."""
        given = {name: value for name, value in (("limit", limit), ("after", after)) if value is not None}
        answer = await self._connection.request_json("GET", f"/v1/topics?{urlencode(given)}", repeatable=True)
        return [str(name) for name in _list_in(answer, "topics")]

    async def describe(self, topic: str) -> dict[str, Any]:
        """A topic's partitions and groups in figures, as the broker gives them."""
        return _object(await self._connection.request_json("GET", _topic_path(topic), repeatable=True))

    async def change(self, topic: str, *, retention_ms: Any = None, retention_bytes: Any = None) -> TopicSettings:
        """Changes the retention. `None` leaves it; `DEFAULT` is the server's default."""
        body = {"retention_ms": retention_ms, "retention_bytes": retention_bytes}
        given = {name: None if value is DEFAULT else value for name, value in body.items() if value is not None}
        return _settings_of(
            await self._connection.request_json("PATCH", _topic_path(topic), json_body=given, repeatable=False)
        )

    async def delete(self, topic: str) -> None:
        """Deletes a topic with its messages and groups."""
        await self._connection.request("DELETE", _topic_path(topic), repeatable=False)

    async def purge(self, topic: str) -> int:
        """Removes every message that the topic stores; returns how many."""
        answer = await self._connection.request_json("POST", _topic_path(topic) + "/purge", repeatable=False)
        return _count_in(answer, "purged")


class Groups:
    """`client.groups`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self, topic: str) -> list[str]:
        """The groups of a topic."""
        answer = await self._connection.request_json(
            "GET", f"/v1/groups?{urlencode({'topic': topic})}", repeatable=True
        )
        return [str(name) for name in _list_in(answer, "groups")]

    async def create(self, topic: str, group: str, *, start: Literal["earliest", "latest"] | None = None) -> None:
        """Creates a group, if it does not exist."""
        body = {"topic": topic, "group": group} | ({"from": start} if start else {})
        await self._connection.request("POST", "/v1/groups", json_body=body, repeatable=False)

    async def delete(self, topic: str, group: str) -> None:
        """Deletes a group; ends its streams and leases."""
        query = urlencode({"topic": topic, "group": group})
        await self._connection.request("DELETE", f"/v1/groups?{query}", repeatable=False)

    async def seek(
        self,
        topic: str,
        group: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        offset: int | None = None,
        time: str | None = None,
    ) -> None:
        """Moves a group to one of: the earliest or latest message, an offset, an RFC 3339 time."""
        if [to, offset, time].count(None) != 2:
            raise Misuse("a seek needs one of to, offset and time")
        target: Any = to or ({"offset": offset} if offset is not None else {"time": time})
        body = {"topic": topic, "group": group, "to": target}
        await self._connection.request("POST", "/v1/groups/seek", json_body=body, repeatable=False)

    async def pause(self, topic: str, group: str) -> None:
        """Stops deliveries to a group."""
        body = {"topic": topic, "group": group}
        await self._connection.request("POST", "/v1/groups/pause", json_body=body, repeatable=False)

    async def resume(self, topic: str, group: str) -> None:
        """Continues deliveries to a group."""
        body = {"topic": topic, "group": group}
        await self._connection.request("POST", "/v1/groups/resume", json_body=body, repeatable=False)

    async def expire(self, topic: str, group: str, *, partition: int, offset: int) -> None:
        """Ends the lease of a message now, as if it had run out."""
        body = {"topic": topic, "group": group, "partition": partition, "offset": offset}
        await self._connection.request("POST", "/v1/groups/expire", json_body=body, repeatable=False)


class DeadLetters:
    """`client.dlq`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def redrive(self, topic: str, *, offsets: Sequence[int] | None = None, limit: int | None = None) -> int:
        """Produces dead letters of `dlq.<topic>` again, for the groups that failed them; returns how many.

        `offsets` are those in `dlq.<topic>`; without them, all that are there now.
        """
        body: dict[str, Any] = {"topic": topic}
        body |= {"all": True} if offsets is None else {"offsets": [*offsets]}
        if limit is not None:
            body["limit"] = limit
        answer = await self._connection.request_json("POST", "/v1/dlq/redrive", json_body=body, repeatable=False)
        return _count_in(answer, "redriven")

    async def peek(self, topic: str, *, partition: int, offset: int = 0, limit: int | None = None) -> list[Message]:
        """The dead letters of a topic, without consuming them."""
        return await peek(self._connection, f"dlq.{topic}", partition, offset, limit)


class Server:
    """`client.server`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def version(self) -> dict[str, Any]:
        """The broker's version."""
        return await self._get("/v1/version")

    async def config(self) -> dict[str, Any]:
        """The settings in force."""
        return await self._get("/v1/config")

    async def digest(self) -> dict[str, Any]:
        """A hash of the whole state, with its LSN."""
        return await self._get("/v1/digest")

    async def openapi(self) -> dict[str, Any]:
        """The description of every route."""
        return await self._get("/v1/openapi.json")

    async def healthy(self) -> bool:
        """Whether the process answers at all."""
        try:
            await self._connection.request("GET", "/v1/healthz", repeatable=True, retry_for=0)
        except DriftqError:
            return False
        return True

    async def ready(self) -> bool:
        """Whether requests are accepted."""
        try:
            await self._connection.request("GET", "/v1/readyz", repeatable=True, retry_for=0)
        except DriftqError as error:
            if isinstance(error, UnknownOutcome) or error.kind == "unavailable":
                return False
            raise
        return True

    async def metrics(self) -> str:
        """The metrics in the text format of Prometheus."""
        answer = await self._connection.request("GET", "/metrics", repeatable=True)
        return answer.body.decode("utf-8")

    async def _get(self, path: str) -> dict[str, Any]:
        return _object(await self._connection.request_json("GET", path, repeatable=True))


async def peek(connection: Connection, topic: str, partition: int, offset: int, limit: int | None) -> list[Message]:
    """What a partition has from an offset on, without consuming it."""
    query = {"topic": topic, "partition": partition, "offset": offset} | ({} if limit is None else {"limit": limit})
    answer = await connection.request_json("GET", f"/v1/peek?{urlencode(query)}", repeatable=True)
    return [message_of(topic, item) for item in _list_in(answer, "messages")]


def _topic_path(topic: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}"


def _settings_of(answer: Any) -> TopicSettings:
    fields = _object(answer)
    try:
        return TopicSettings(
            fields["name"], fields["retention_ms"], fields["retention_bytes"], fields.get("partitions")
        )
    except KeyError as error:
        raise ProtocolError(f"the settings of a topic lack {error}") from error


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise ProtocolError(f"expected a JSON object, got {type(answer).__name__}")
    return answer


def _list_in(answer: Any, name: str) -> list[Any]:
    values = _object(answer).get(name)
    if not isinstance(values, list):
        raise ProtocolError(f"the answer has no list {name!r}")
    return values


def _count_in(answer: Any, name: str) -> int:
    value = _object(answer).get(name)
    if not isinstance(value, int):
        raise ProtocolError(f"the answer has no count {name!r}")
    return value
