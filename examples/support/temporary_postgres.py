"""A PostgreSQL server in a temporary folder, for examples and their tests: it can crash and be started again."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60
UNPRIVILEGED_USERS = ("postgres", "nobody")
"""Whom the server runs as if the caller is root, which it refuses."""


class NoPostgres(Exception):
    """No PostgreSQL server is installed, or it did not start."""


def find_programs() -> Path | None:
    """The folder with `initdb` and `pg_ctl` of the newest version installed."""
    folders = [Path(folder) for folder in glob.glob("/usr/lib/postgresql/*/bin")]
    folders.sort(key=lambda folder: int(folder.parent.name) if folder.parent.name.isdecimal() else 0, reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    complete = (folder for folder in folders if all((folder / name).is_file() for name in ("initdb", "pg_ctl")))
    return next(complete, None)


class TemporaryPostgres:
    """A server that listens on a unix socket in its folder only."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._as_user = _unprivileged(folder)
        self.conninfo = f"host={folder} user=postgres dbname=postgres connect_timeout=10"
        self._run("initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "postgres", "-E", "UTF8", "-N")

    def start(self) -> None:
        """Starts the server, and returns when it accepts connections."""
        # Crashes are of its processes, not of the machine. Every recovery would sync the whole folder.
        own = f"-c listen_addresses='' -c unix_socket_directories={self._folder}"
        options = f"{own} -c max_connections=60 -c fsync=off"
        log = self._folder / "log"
        wait = ("-w", "-t", str(START_TIMEOUT_S))
        self._run("pg_ctl", "start", "-D", f"{self._folder}/data", "-l", str(log), "-o", options, *wait)

    def crash(self) -> None:
        """Ends the server at once, without a checkpoint: the next start recovers from its log."""
        self._run("pg_ctl", "stop", "-D", f"{self._folder}/data", "-m", "immediate")

    def _run(self, program: str, *arguments: str) -> None:
        # To a file: the server inherits what pg_ctl writes to, and a pipe would stay open as long as it runs.
        output = self._folder / f"{program}.out"
        with output.open("wb") as file:
            done = subprocess.run(
                [self._programs / program, *arguments],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=self._folder, check=False, **self._as_user,
            )  # fmt: skip
        if done.returncode != 0:
            raise NoPostgres(f"{program} failed: {output.read_text(errors='replace')[-2000:]}")


def _unprivileged(folder: Path) -> dict[str, Any]:
    """What makes `subprocess` run a program as a user that the server accepts, who then owns the folder."""
    if os.geteuid() != 0:
        return {}
    for name in UNPRIVILEGED_USERS:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, user.pw_uid, user.pw_gid)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise NoPostgres(f"root cannot run PostgreSQL, and there is no user {' or '.join(UNPRIVILEGED_USERS)}")


@contextmanager
def temporary_postgres() -> Iterator[TemporaryPostgres]:
    """A running server, removed at the end with all its data."""
    programs = find_programs()
    if programs is None:
        raise NoPostgres("no PostgreSQL server is installed: initdb and pg_ctl were not found")
    # In /tmp: the path of a socket has at most 107 bytes, and the server's user must be able to enter the folder.
    with tempfile.TemporaryDirectory(prefix="driftq-pg-", dir="/tmp") as folder:
        server = TemporaryPostgres(programs, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.crash()
