from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from driftq import Client, TlsError
from stub import Reply, Stub
from support import asynchronous, needs_openssl, server_side


@needs_openssl
@asynchronous
async def test_certificate_that_is_not_trusted_is_a_tls_error_and_not_retried(certificate: tuple[Path, Path]) -> None:
    async with Stub(server_side(certificate)) as stub, Client(stub.url) as client:
        with pytest.raises(TlsError, match="certificate") as raised:
            await client.topics.list()
        assert (raised.value.kind, raised.value.retry_is_safe) == ("tls", False)
        assert stub.requests == []


@needs_openssl
@asynchronous
async def test_certificate_that_is_given_as_trusted_is_accepted(certificate: tuple[Path, Path]) -> None:
    async with Stub(server_side(certificate)) as stub, Client(stub.url, ca=str(certificate[0])) as client:
        stub.on("GET", "/v1/topics", Reply(body={"topics": []}))
        assert await client.topics.list() == []


@asynchronous
async def test_https_to_a_server_without_tls_is_a_tls_error() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, Client(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(TlsError, match="handshake"):
            await client.topics.list()


@asynchronous
async def test_handshake_that_is_cut_is_retried() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server, Stub() as stub:
        stub.on("GET", "/v1/topics", Reply(body={"topics": []}))
        cutting = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Client([cutting, stub.url]) as client:
            assert await client.topics.list() == []
