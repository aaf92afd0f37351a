"""The broker's own idempotency store."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from driftq.canonical import json_text
from driftq.connection import Connection, encoded_with
from driftq.errors import InProgress, NotFound, ProtocolError
from driftq.messages import milliseconds
from driftq.scopes import Delivery, Identity, scope_of
from driftq.store import Decision, Effect, EffectRecord, Execute, InProgressElsewhere, decision_of, effect_of


class BrokerStore:
    """`Store` over the routes `/v1/idempotency…`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def begin(
        self,
        identity: Identity,
        *,
        owner: str,
        lease: float = 0,
        ttl: float | None = None,
        expires_at: str | None = None,
        request_hash: str | None = None,
        on_expired: str | None = None,
        delivery: Delivery | None = None,
    ) -> Decision:
        """As `Store.begin`."""
        body = begin_body(identity, owner, lease, delivery)
        if ttl is not None:
            body["ttl_ms"] = milliseconds(ttl)
        for name, value in (("expires_at", expires_at), ("request_hash", request_hash), ("on_expired", on_expired)):
            if value is not None:
                body[name] = value
        try:
            # Cannot double: a begin whose answer was lost is granted again to its delivery, else told IN_PROGRESS.
            fields = await self._connection.request_json(
                "POST", "/v1/idempotency/begin", json_body=body, repeatable=True
            )
        except InProgress as error:
            return InProgressElsewhere(error.retry_after or 0.0)
        return decision_of(fields)

    async def finish(
        self,
        identity: Identity,
        *,
        lease_token: str,
        status: str,
        result: Any = None,
        response_code: int | None = None,
        last_error: str | None = None,
        dead_letter: bool = False,
        delivery: Delivery | None = None,
    ) -> None:
        """As `Store.finish`. With `dead_letter` the message of `delivery` is dead-lettered in the same record."""
        body: dict[str, Any] = {**identity.as_json(), "lease_token": lease_token, "status": status}
        if response_code is not None:
            body["response_code"] = response_code
        if last_error is not None:
            body["last_error"] = last_error
        if dead_letter:
            body["dead_letter"] = True
        if delivery is not None:
            body["delivery"] = delivery.as_json()
        text = None if result is None else json_text(result)
        await self._connection.request_json(
            "POST", "/v1/idempotency/finish", body=encoded_with(body, result=text), repeatable=True
        )

    async def reacquire(self, identity: Identity, *, owner: str, lease: float = 0) -> Execute:
        """As `Store.reacquire`."""
        body = begin_body(identity, owner, lease, None)
        decision = decision_of(
            await self._connection.request_json("POST", "/v1/idempotency/reacquire", json_body=body, repeatable=False)
        )
        if not isinstance(decision, Execute):
            raise ProtocolError("a reacquire was not answered with EXECUTE")
        return decision

    async def renew(self, identity: Identity, *, lease_token: str, lease: float = 0) -> str:
        """As `Store.renew`."""
        body = {**identity.as_json(), "lease_token": lease_token, "lease_ms": milliseconds(lease)}
        fields = await self._connection.request_json("POST", "/v1/idempotency/renew", json_body=body, repeatable=True)
        return str(fields["lease_until"])

    async def get(self, identity: Identity) -> Effect | None:
        """As `Store.get`."""
        path = "/v1/idempotency?" + urlencode(identity.as_query())
        try:
            return effect_of(await self._connection.request_json("GET", path, repeatable=True))
        except NotFound:
            return None

    async def forget(self, identity: Identity) -> bool:
        """As `Store.forget`."""
        path = "/v1/idempotency?" + urlencode(identity.as_query())
        try:
            await self._connection.request("DELETE", path, repeatable=True)
        except NotFound:
            return False
        return True

    async def list(
        self,
        *,
        tenant: str = "",
        kind: str = "",
        status: str = "",
        older_than: float | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> tuple[list[EffectRecord], str | None]:
        """A page of effects, and what to give as `after` for the next one (`None` with the last)."""
        query: dict[str, Any] = {"tenant_id": tenant, "kind": kind, "status": status, "limit": limit, "after": after}
        query["older_than_ms"] = None if older_than is None else milliseconds(older_than)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        page = await self._connection.request_json("GET", "/v1/idempotency/list?" + urlencode(given), repeatable=True)
        try:
            records = [
                EffectRecord(Identity(scope_of(entry["scope"]), entry["key"], entry["tenant_id"]), effect_of(entry))
                for entry in page["records"]
            ]
            return records, page["next"]
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"a list of effects lacks {error}") from error


def begin_body(identity: Identity, owner: str, lease: float, delivery: Delivery | None) -> dict[str, Any]:
    """The body of a begin or reacquire."""
    body: dict[str, Any] = {**identity.as_json(), "owner": owner, "lease_ms": milliseconds(lease)}
    if delivery is not None:
        body["delivery"] = delivery.as_json()
    return body
