"""The URLs of a client: which is used, which is next, and to which the key may be sent."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from driftq.errors import Misuse

LEADER_HEADER = "DriftQ-Leader"


def base_url(url: str) -> str:
    """A URL without a trailing slash, checked. Anything but `http(s)://host[:port][/path]` is `Misuse`."""
    if not isinstance(url, str):
        raise Misuse(f"a URL is {type(url).__name__}, expected a text")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise Misuse(f"the URL {_without_user(url)!r} is invalid: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise Misuse(f"the URL {_without_user(url)!r} needs the scheme http or https, such as http://127.0.0.1:8080")
    if not parts.hostname or port == 0:
        raise Misuse(f"the URL {_without_user(url)!r} has no host")
    if parts.username is not None or parts.password is not None:
        raise Misuse("a URL must not contain a user or password; use key=")
    if parts.query or parts.fragment:
        raise Misuse(f"the URL {_without_user(url)!r} must have neither query nor fragment")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _without_user(url: str) -> str:
    return url.rsplit("@", 1)[-1]


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


class Endpoints:
    """The URLs in use. One is current as long as it answers."""

    def __init__(self, urls: str | Sequence[str]) -> None:
        if isinstance(urls, str):
            urls = [urls]
        if not isinstance(urls, Sequence) or not urls:
            raise Misuse("one URL or a list of them is required")
        self._urls = [base_url(url) for url in urls]
        self._origins = {origin(url): url for url in self._urls}
        self._current = self._urls[0]

    @property
    def current(self) -> str:
        """The URL that requests go to."""
        return self._current

    def is_own(self, url: str) -> bool:
        """Whether the URL is one of those given, so that the key may be sent there."""
        return origin(url) in self._origins

    def failed(self, url: str) -> None:
        """Makes the next URL the current one, unless another request has done so already."""
        if url != self._current:
            return
        following = self._urls.index(url) + 1 if url in self._urls else 0
        self._current = self._urls[following % len(self._urls)]

    def hint(self, leader: str | None) -> None:
        """Prefers the URL that an answer names as the leader's, if it is one of those given."""
        own = self._known(leader)
        if own is not None:
            self._current = own

    def redirected(self, target: str) -> str:
        """Prefers the URL that a 307 names, and returns it as it is to be used. A foreign one is used as it is."""
        self._current = self._known(target) or base_url(target)
        return self._current

    def _known(self, url: str | None) -> str | None:
        if not url:
            return None
        try:
            return self._origins.get(origin(base_url(url)))
        except (Misuse, ValueError):
            return None
