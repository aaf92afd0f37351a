"""Requests of a client: fails over between URLs, repeats what cannot double, and checks what answers.

Nothing here knows a route; the client says of each request whether it can double.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp

from driftq.backoff import Backoff
from driftq.endpoints import LEADER_HEADER, Endpoints, base_url
from driftq.errors import (
    DriftqError,
    Misuse,
    ProtocolError,
    Unavailable,
    UnknownOutcome,
    error_of_answer,
    may_be_sent_again,
    shown,
)
from driftq.events import EventHook, Reporter
from driftq.transport import Answer, Transport, ssl_context

API = "v1"
JSON_TYPE = "application/json"
NDJSON_TYPE = "application/x-ndjson"
STREAM_SILENCE_S = 45.0
"""Three of the broker's blank lines."""


class Connection:
    """The URLs, key and limits of a client, and how its requests are made. To be closed."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        key: str | None = None,
        timeout: float = 30.0,
        retry_for: float = 60.0,
        ca: str | ssl.SSLContext | None = None,
        on_event: EventHook | None = None,
    ) -> None:
        if timeout <= 0 or retry_for < 0:
            raise Misuse("timeout must be above 0, and retry_for at least 0")
        if key is not None and (not key or not key.isascii() or not key.isprintable()):
            raise Misuse("a key is visible ASCII text")
        self._endpoints = Endpoints(urls)
        self._key = key
        self._timeout = timeout
        self._retry_for = retry_for
        self._reporters = [Reporter(on_event)]
        try:
            self._transport = Transport(tls=ssl_context(ca))
        except (OSError, ssl.SSLError) as error:
            raise Misuse(f"the certificates in {ca!r} cannot be read: {error}") from error
        self._checks: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"Connection({self._endpoints.current!r})"

    @contextmanager
    def reported_to(self, reporter: Reporter) -> Iterator[None]:
        """Reports retries to a worker's hook too, for as long as it runs, unless it is the client's own."""
        added = not any(reporter.has_hook_of(other) for other in self._reporters)
        if added:
            self._reporters.append(reporter)
        try:
            yield
        finally:
            if added:
                self._reporters.remove(reporter)

    async def close(self) -> None:
        """Closes all connections."""
        for check in self._checks.values():
            check.cancel()
        await self._transport.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        json_body: Any = None,
        body: bytes | None = None,
        content_type: str = JSON_TYPE,
        headers: Mapping[str, str] | None = None,
        repeatable: bool,
        retry_for: float | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Makes a request until it is answered, fails for good, or `retry_for` has passed.

        `repeatable` says that the request cannot double. The answer is one of success; any other is raised.
        """
        if json_body is not None:
            body = encoded(json_body)
        sent_headers = dict(headers or {})
        if body is not None:
            sent_headers["Content-Type"] = content_type
        deadline = time.monotonic() + (self._retry_for if retry_for is None else retry_for)
        backoff = Backoff()
        while True:
            url = self._endpoints.current
            try:
                return await self._attempt(method, url, path, sent_headers, body, timeout or self._timeout, repeatable)
            except DriftqError as error:
                if isinstance(error, ProtocolError):
                    error.name(url)
                if not may_be_sent_again(error, repeatable):
                    raise
                if error.status in (0, 502, 503, 504):
                    self._endpoints.failed(url)
                pause = backoff.next_pause(error.retry_after)
                if time.monotonic() + pause >= deadline:
                    raise
                for reporter in self._reporters:
                    reporter.report(
                        "request_retried",
                        method=method,
                        path=path.partition("?")[0],
                        kind=error.kind,
                        error=error.message,
                        pause=pause,
                    )
            await asyncio.sleep(pause)

    async def request_json(self, method: str, path: str, **options: Any) -> Any:
        """As `request`, for an answer in JSON."""
        answer = await self.request(method, path, **options)
        try:
            return decoded(answer)
        except ProtocolError as error:
            error.name(answer.url)
            raise

    async def _attempt(
        self,
        method: str,
        url: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
        repeatable: bool,
    ) -> Answer:
        await self._ensure_checked(url)
        answer = await self._send(method, url, path, headers, body, timeout, repeatable)
        self._endpoints.hint(answer.headers.get(LEADER_HEADER))
        if answer.status == 307:
            # The redirecting server did nothing. Its target is asked once; another 307 is for the retries.
            target = self._endpoints.redirected(_target_of(answer, path))
            answer = await self._send(method, target, path, headers, body, timeout, repeatable)
            if answer.status == 307:
                raise Unavailable("redirected more than once", status=307)
        if 200 <= answer.status < 300:
            return answer
        if 300 <= answer.status < 400:
            raise ProtocolError(f"expected an answer of DriftQ, got a redirect ({answer.status})", status=answer.status)
        raise error_of_answer(answer.status, answer.body, retry_after_of(answer.headers), repeatable=repeatable)

    async def _send(
        self,
        method: str,
        url: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
        repeatable: bool,
    ) -> Answer:
        try:
            return await self._transport.send(
                method, url + path, headers={**headers, **self._authorization(url)}, body=body, timeout=timeout
            )
        except UnknownOutcome as error:
            error.retry_is_safe = repeatable
            raise

    def _authorization(self, url: str) -> dict[str, str]:
        if self._key is None or not self._endpoints.is_own(url):
            return {}
        return {"Authorization": f"Bearer {self._key}"}

    async def _ensure_checked(self, url: str) -> None:
        """Asks a URL once which API it has, before anything else is sent there. Concurrent requests share one check."""
        check = self._checks.get(url)
        if check is None:
            check = self._checks[url] = asyncio.create_task(self._check_version(url))
        if check.done() and not check.cancelled() and check.exception() is None:
            return
        try:
            await asyncio.shield(check)
        finally:
            # One that failed is made again for the next request.
            if check.done() and self._checks.get(url) is check and (check.cancelled() or check.exception()):
                del self._checks[url]

    async def _check_version(self, url: str) -> None:
        try:
            answer = await self._send("GET", url, "/v1/version", {}, None, self._timeout, repeatable=True)
        except UnknownOutcome as unanswered:
            # Of the request itself nothing was sent.
            raise Unavailable(unanswered.message) from unanswered
        if answer.status == 307:
            # The server is not asked any more: the redirect of the request itself names the one to use.
            return
        if answer.status != 200:
            error = error_of_answer(answer.status, answer.body, retry_after_of(answer.headers), repeatable=True)
            if isinstance(error, UnknownOutcome) and may_be_sent_again(error, repeatable=True):
                raise Unavailable(error.message, status=error.status, retry_after=error.retry_after)
            raise error
        fields = decoded(answer)
        if not isinstance(fields, dict) or not isinstance(fields.get("version"), str):
            raise ProtocolError(f"expected the version of a DriftQ broker, got {shown(answer.body)}")
        api = fields.get("api", API)
        if api != API:
            raise ProtocolError(f"{url}: this client speaks API {API}, the broker {fields['version']} has API {api}")

    @asynccontextmanager
    async def stream(self, path: str, *, silence: float = STREAM_SILENCE_S) -> AsyncIterator[aiohttp.ClientResponse]:
        """Opens a stream of NDJSON, once. Its failures make the next URL the current one."""
        url = self._endpoints.current
        try:
            await self._ensure_checked(url)
            async with self._transport.open(url + path, headers=self._authorization(url), silence=silence) as response:
                self._endpoints.hint(response.headers.get(LEADER_HEADER))
                await self._check_head(response, path)
                yield response
        except DriftqError as error:
            if isinstance(error, ProtocolError):
                error.name(url)
            if error.status in (0, 502, 503, 504) and may_be_sent_again(error, repeatable=True):
                self._endpoints.failed(url)
            raise

    async def _check_head(self, response: aiohttp.ClientResponse, path: str) -> None:
        if response.status == 307:
            self._endpoints.redirected(_target_of(Answer(307, response.headers, b""), path))
            raise Unavailable("the stream is redirected to another server", status=307)
        media_type = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
        if response.status == 200 and media_type == NDJSON_TYPE:
            return
        body = await response.read()
        if response.status == 200:
            raise ProtocolError(f"expected a stream of {NDJSON_TYPE}, got {media_type or 'no type'} with {shown(body)}")
        raise error_of_answer(response.status, body, retry_after_of(response.headers), repeatable=True)


def _target_of(answer: Answer, path: str) -> str:
    """The base URL that a 307 names: its leader header, or its location without the path of the request."""
    target = answer.headers.get(LEADER_HEADER) or answer.headers.get("Location", "")
    try:
        return base_url(target.removesuffix(path))
    except Misuse as error:
        raise ProtocolError(f"a redirect names no usable URL: {error.message}", status=307) from error


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """The seconds of `Retry-After`; dates and nonsense count as none."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def encoded(value: Any) -> bytes:
    """A request's JSON. What the caller gave that is no JSON is `Misuse`."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(f"a field of the request is no JSON: {error}") from error


def encoded_with(fields: Mapping[str, Any], **raw: str | None) -> bytes:
    """As `encoded`, with further fields whose JSON is given as text; those that are `None` are left out."""
    body = encoded(fields)
    for name, text in raw.items():
        if text is not None:
            body = b'%s%s"%s":%s}' % (body[:-1], b"," if len(body) > 2 else b"", name.encode(), text.encode("utf-8"))
    return body


def decoded(answer: Answer) -> Any:
    """The JSON of a successful answer; `None` of one without content."""
    if answer.status == 204:
        return None
    if answer.media_type != JSON_TYPE:
        raise ProtocolError(
            f"expected {JSON_TYPE}, got {answer.media_type or 'no content type'} with {shown(answer.body)}",
            status=answer.status,
        )
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"expected JSON, got {shown(answer.body)}", status=answer.status) from error
