from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from driftq import Client
from driftq.testing import Broker, NoBroker, broker, find_driftqd
from support import asynchronous, needs_broker


def test_program_is_found_by_variable_then_path_then_target_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("bin", "repository/target/debug", "repository/target/release", "repository/clients"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    debug, release = (tmp_path / "repository" / "target" / name / "driftqd" for name in ("debug", "release"))
    on_path = tmp_path / "bin" / "driftqd"
    for program in (debug, release, on_path):
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    os.utime(debug, (2_000_000_000, 2_000_000_000))
    monkeypatch.chdir(tmp_path / "repository" / "clients")
    monkeypatch.setenv("DRIFTQD", "/somewhere/driftqd")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_driftqd() == Path("/somewhere/driftqd")
    monkeypatch.delenv("DRIFTQD")
    assert find_driftqd() == on_path
    monkeypatch.setenv("PATH", "")
    assert find_driftqd() == debug


def test_program_that_does_not_start_is_told_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "driftqd"
    program.write_text("#!/bin/sh\necho 'the port is taken' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("DRIFTQD", str(program))
    with pytest.raises(NoBroker, match="the port is taken"), broker():
        pass


@needs_broker
@asynchronous
async def test_broker_keeps_address_and_messages_over_a_kill() -> None:
    with broker("--max-partition-msgs", "5", keep_log=True) as running:
        url = running.url
        async with Client(url) as client:
            await client.topics.create("t")
            await client.produce("t", "v")
            running.kill()
            running.start()
            assert running.url == url
            assert len(await client.peek("t", partition=0)) == 1


@needs_broker
def test_fixture_is_there_where_the_package_is_installed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(driftq_broker): assert driftq_broker.url.startswith('http')\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert "1 passed" in ran.stdout


async def produced_with_faults(running: Broker, count: int) -> int:
    """Sends messages over a lossy network; returns how many the topic has."""
    async with Client(running.url, timeout=5.0) as client:
        await client.topics.create("t")
        for n in range(count):
            await client.produce("t", f"{n}", idempotency_key=f"n-{n}")
        (partition,) = (await client.topics.describe("t"))["partitions"]
        return int(partition["messages"])


@needs_broker
@asynchronous
async def test_same_seed_plays_the_same_faults_and_keyed_messages_are_stored_once() -> None:
    lists = []
    for _ in range(2):
        with broker(chaos="seed=42,duplicate=0.3,drop-reply=0.3") as running:
            assert await produced_with_faults(running, 30) == 30
            lists.append(running.faults())
            last = lists[-1][-1]["n"]
            assert running.faults(after=last - 1) == lists[-1][-1:]
    assert lists[0] == lists[1]
    assert {fault["fault"] for fault in lists[0]} == {"duplicate", "drop-reply"}


@needs_broker
def test_failure_under_faults_shows_seed_and_faults(capfd: pytest.CaptureFixture[str]) -> None:
    def failing() -> None:
        with broker(chaos="seed=7,drop-reply=1") as running, socket.create_connection(address_of(running)) as peer:
            peer.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert peer.recv(1) == b""
            raise RuntimeError("the test")

    with pytest.raises(RuntimeError, match="the test"):
        failing()
    shown = capfd.readouterr().err
    assert "chaos='seed=7,drop-reply=1' and played 1 faults" in shown
    assert "#1 drop-reply: GET /v1/topics (body " in shown


def address_of(running: Broker) -> tuple[str, int]:
    url = urlsplit(running.url)
    return str(url.hostname), int(url.port or 0)


@needs_broker
def test_broker_without_faults_has_none_to_list() -> None:
    with broker(memory=True) as running:
        assert (running.faults(), running.describe_faults()) == ([], "")


@needs_broker
def test_faults_of_a_broker_that_has_ended_are_described_without_an_error() -> None:
    with broker(chaos="seed=7") as running:
        running.kill()
        assert "faults cannot be read" in running.describe_faults()


def test_folder_and_faults_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="keep_log"), broker(keep_log=True, chaos="seed=1"):
        pass


FAILING_TEST = """
import urllib.request

def test_fails(driftq_start_broker):
    running = driftq_start_broker(chaos="seed=9,delay=1")
    assert urllib.request.urlopen(running.url + "/v1/topics").status == 0

def test_passes(driftq_start_broker):
    assert driftq_start_broker(memory=True).url != driftq_start_broker().url
"""


@needs_broker
def test_report_of_a_failed_test_has_the_faults_of_its_broker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING_TEST)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in ran.stdout
    assert "faults of the DriftQ broker" in ran.stdout
    assert "chaos='seed=9,delay=1' and played 1 faults" in ran.stdout
    assert "#1 delay: GET /v1/topics" in ran.stdout
