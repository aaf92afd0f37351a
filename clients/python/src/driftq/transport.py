"""One HTTP request over aiohttp, with its failures as errors of the client. Knows nothing of retries."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from driftq.errors import DriftqError, ProtocolError, TlsError, Unavailable, UnknownOutcome

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 15.0
"""Shorter than the 30 s after which the broker closes an idle connection, so that it is not used while it is closed."""

CHUNK_BYTES = 1 << 16
LINE_BYTES_MAX = 64 << 20
"""The longest line of a stream that is collected; the broker's largest message in JSON is well below it."""

VERSION = "0.1.0"
CONTRACT = 1
USER_AGENT = f"driftq-python/{VERSION} contract/{CONTRACT}"


@dataclass(slots=True)
class Answer:
    """An answer of which all was received."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str = ""
    """Where it came from: scheme and authority."""

    @property
    def media_type(self) -> str:
        """The content type without its parameters."""
        return self.headers.get("Content-Type", "").split(";")[0].strip().lower()


class CutAnswer(UnknownOutcome):
    """An answer that ended early. `received` is what came of its body."""

    def __init__(self, message: str, received: bytes) -> None:
        super().__init__(message)
        self.received = received


def ssl_context(ca: str | ssl.SSLContext | None) -> ssl.SSLContext | bool:
    """The TLS settings: certificates to trust from a file, a context of the caller's, or the system's."""
    if ca is None:
        return True
    return ca if isinstance(ca, ssl.SSLContext) else ssl.create_default_context(cafile=ca)


class Transport:
    """A pool of connections. To be closed."""

    def __init__(self, *, tls: ssl.SSLContext | bool) -> None:
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls, keepalive_timeout=KEEPALIVE_S)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers={"User-Agent": USER_AGENT},
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._session

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None, timeout: float
    ) -> Answer:
        """One request, once. `Unavailable`: nothing of it was sent; `UnknownOutcome`: it may have arrived."""
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, CONNECT_TIMEOUT_S))
        received = bytearray()
        try:
            async with self._opened().request(
                method, URL(url, encoded=True), headers=headers, data=body, timeout=limits, allow_redirects=False
            ) as response:
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    received += chunk
                return Answer(response.status, response.headers, bytes(received), str(response.url.origin()))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ssl.SSLError) as error:
            failure = error_of_failure(error, url)
            if received and isinstance(failure, UnknownOutcome):
                raise CutAnswer(failure.message, bytes(received)) from error
            raise failure from error

    @asynccontextmanager
    async def open(
        self, url: str, *, headers: Mapping[str, str], silence: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A GET whose answer is a stream; one that is silent for `silence` seconds counts as cut."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence)
        try:
            response = await self._opened().get(
                URL(url, encoded=True), headers=headers, timeout=limits, allow_redirects=False
            )
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ssl.SSLError) as error:
            raise error_of_failure(error, url) from error
        try:
            yield response
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise error_of_failure(error, url) from error
        finally:
            # Not release(): a stream is never read to its end, so its connection cannot be used again.
            response.close()


def error_of_failure(error: BaseException, url: str) -> DriftqError:
    """What a failure to get an answer means for the request."""
    where = URL(url).origin() if "://" in url else url
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return TlsError(f"the certificate of {where} is refused: {error.certificate_error}")
    cause: Any = getattr(error, "os_error", None) or error
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return TlsError(f"the TLS handshake with {where} failed: {cause.reason or cause}")
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        # The text of aiohttp repeats the address and names settings of TLS.
        number = getattr(cause, "errno", None) or 0
        why = os.strerror(number) if number > 0 else _text(error)
        return Unavailable(f"cannot connect to {where}: {why}")
    if isinstance(error, asyncio.TimeoutError):
        return UnknownOutcome(f"no complete answer from {where} in time")
    if isinstance(error, aiohttp.ClientResponseError):
        return ProtocolError(f"{where}: expected an HTTP server: {' '.join(error.message.split())}")
    if isinstance(error, aiohttp.ClientPayloadError):
        return UnknownOutcome(f"the answer of {where} was cut short")
    return UnknownOutcome(f"the connection to {where} was lost: {_text(error)}")


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
