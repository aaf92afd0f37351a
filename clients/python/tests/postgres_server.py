"""A PostgreSQL server for tests, on a temporary folder and a unix socket: it can be killed and started again."""

from __future__ import annotations

import functools
import glob
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

START_TIMEOUT_S = 60.0
USERS = ("postgres", "nobody")
"""Whom the server runs as where the tests run as root, which it refuses."""

_databases = itertools.count()


@functools.cache
def programs() -> Path | None:
    """The folder with `initdb` and `postgres`, the newest version of those installed."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += [Path(folder) for folder in glob.glob("/usr/lib/postgresql/*/bin")]
    usable = [folder for folder in found if (folder / "initdb").is_file() and (folder / "postgres").is_file()]
    return max(usable, key=lambda folder: _version(folder.parent.name), default=None)


def _version(name: str) -> int:
    return int(name) if name.isdecimal() else 0


needs_postgres = pytest.mark.skipif(programs() is None, reason="no PostgreSQL server is installed (initdb, postgres)")


class Server:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        found = programs()
        assert found is not None
        self._programs = found
        self._folder = folder
        self._data = folder / "data"
        self._user = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N")

    def conninfo(self, database: str = "postgres") -> str:
        """How to connect."""
        return f"host={self._folder} user=postgres dbname={database} connect_timeout=10"

    def start(self) -> None:
        """Starts the server, and returns when it accepts connections."""
        # Its processes are killed, not the machine: what they have written stays. Every recovery would sync the whole
        # folder.
        options = {
            "listen_addresses": "", "unix_socket_directories": str(self._folder), "max_connections": "100",
            "fsync": "off",
        }  # fmt: skip
        arguments = [text for name, value in options.items() for text in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, **self._identity(),
            )  # fmt: skip
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self.conninfo()).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > give_up_at or self._process.poll() is not None:
                    raise AssertionError((self._folder / "log").read_text(errors="replace")[-4_000:]) from None
                time.sleep(0.02)

    def kill(self) -> None:
        """Ends the server at once, with all its processes."""
        assert self._process is not None
        children = self._children()
        for child in children:
            # One may have ended by itself.
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._process = None
        # Until then they hold the shared memory, and no other server starts.
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not all(_has_ended(child) for child in children):
            assert time.monotonic() < give_up_at, "killed processes have not ended"
            time.sleep(0.02)

    def stop(self) -> None:
        """Stops the server, whose data are not needed any more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(START_TIMEOUT_S)
            self._process = None

    def create_database(self) -> str:
        """An empty database; returns how to connect to it."""
        name = f"test_{next(_databases)}"
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.conninfo(name)

    def dump(self, database: str) -> str:
        """The schema and the data of a database, as `pg_dump` writes them."""
        return self._run("pg_dump", "--no-owner", "--inserts", f"--dbname={database}")

    def _children(self) -> list[int]:
        assert self._process is not None
        # The first child process is stopped meanwhile, so that it starts no other.
        self._process.send_signal(signal.SIGSTOP)
        text = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [int(child) for child in text.split()]

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [self._programs / program, *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=self._folder, check=False, **self._identity(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _identity(self) -> dict[str, object]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _has_ended(process: int) -> bool:
    """Whether a process is gone, or waits for its end to be noticed."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    # The state follows the name, which is in parentheses and may have some itself.
    return stat.rpartition(") ")[2][:1] in ("Z", "X")


def _unprivileged() -> pwd.struct_passwd | None:
    """The user to run the server as; `None`: that of the tests."""
    if os.geteuid() != 0:
        return None
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError(f"the tests run as root, and there is no user {' or '.join(USERS)} for the server")


@contextmanager
def postgres() -> Iterator[Server]:
    """A running server, gone at the end."""
    # Not pytest's folder: the path of a socket has at most 107 bytes, and the server's user must be able to enter.
    with tempfile.TemporaryDirectory(prefix="driftq-pg-", dir="/tmp") as folder:
        server = Server(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
