"""Starts brokers for tests.

`broker()` is a context manager; the fixtures `driftq_broker` and `driftq_start_broker` of pytest use it. The program is
the one that the variable `DRIFTQD` names, `driftqd` of the PATH, or the newest one in the target folder of the
repository that the current folder or this file is in.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
FAULTS_TIMEOUT_S = 5.0
DESCRIBED_MAX = 100
"""How many faults `describe_faults` shows, the newest ones."""

_LISTENING = re.compile(r"listening on (https?://[^\s\"]+)")
_PROGRAM = "driftqd.exe" if sys.platform == "win32" else "driftqd"


class NoBroker(Exception):
    """No `driftqd` was found, or it did not start."""


def find_driftqd() -> Path | None:
    """The `driftqd` to test with."""
    named = os.environ.get("DRIFTQD")
    if named:
        return Path(named)
    on_path = shutil.which(_PROGRAM)
    if on_path:
        return Path(on_path)
    for start in (Path.cwd(), Path(__file__).resolve()):
        for folder in (start, *start.parents):
            built = [folder / "target" / profile / _PROGRAM for profile in ("release", "debug")]
            found = [program for program in built if program.is_file()]
            if found:
                return max(found, key=lambda program: program.stat().st_mtime)
    return None


class Broker:
    """A running broker. Its address stays the same when it is started again."""

    def __init__(self, program: Path, arguments: Sequence[str], chaos: str | None = None) -> None:
        self._program = program
        self._arguments = list(arguments)
        self._process: subprocess.Popen[str] | None = None
        self._address = "127.0.0.1:0"
        self.chaos = chaos
        """The faults that it simulates, such as `seed=42,drop-reply=0.1`."""
        self.url = ""
        """The base URL."""
        self.log: list[str] = []
        """The lines that the broker has written to standard error."""

    def start(self) -> None:
        """Starts the broker, and returns when it listens."""
        command = [str(self._program), "serve", "--addr", self._address, *self._arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTQ")}
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._collect, args=(self._process, lines), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=START_TIMEOUT_S)
            except queue.Empty:
                line = None
            if line is None:
                self.kill()
                raise NoBroker(f"{self._program} did not start:\n" + "".join(self.log[-20:]))
            found = _LISTENING.search(line)
            if found:
                self.url = found[1]
                self._address = self.url.split("://")[1]
                return

    def _collect(self, process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)
            lines.put(line)
        lines.put(None)

    def stop(self) -> None:
        """Stops the broker as an operator does."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """Ends the broker at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Suspends the process: connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues a suspended process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def faults(self, after: int = 0) -> list[dict[str, Any]]:
        """The faults that the broker has played, those with a number above `after`: what `GET /v1/chaos` lists.

        The newest 10,000; none without `chaos`. Raises `OSError` if the broker does not answer.
        """
        if self.chaos is None:
            return []
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/v1/chaos?after={after}", timeout=FAULTS_TIMEOUT_S) as answer:
            played: list[dict[str, Any]] = json.load(answer)["played"]
            return played

    def describe_faults(self) -> str:
        """The seed and the newest faults as text, for the report of a failed test; empty without `chaos`."""
        if self.chaos is None:
            return ""
        try:
            faults = self.faults()
        except (OSError, ValueError) as error:
            return f"the broker simulated chaos={self.chaos!r}; its faults cannot be read: {error}"
        lines = [f"the broker simulated chaos={self.chaos!r} and played {len(faults)} faults"]
        if len(faults) > DESCRIBED_MAX:
            lines.append(f"  ({len(faults) - DESCRIBED_MAX} older ones are not shown)")
        lines += [f"  {_fault_text(fault)}" for fault in faults[-DESCRIBED_MAX:]]
        return "\n".join(lines)


def _fault_text(fault: dict[str, Any]) -> str:
    detail = " ".join(f"{name}={value}" for name, value in fault["detail"].items())
    if "delivery" in fault:
        of = fault["delivery"]
        place = f"{of['topic']}/{of['partition']}/{of['offset']} to {of['group']}, attempt {of['attempts']}"
    else:
        place = f"{fault['request']} (body {fault['digest']}, occurrence {fault['occurrence']})"
    return f"#{fault['n']} {fault['fault']}: {place} {detail}".rstrip()


@contextmanager
def broker(*arguments: str, keep_log: bool = False, memory: bool = False, chaos: str | None = None) -> Iterator[Broker]:
    """A broker on a free port of the loopback address, stopped at the end.

    It keeps its state in memory without a log, with `memory` as a log in memory, or with `keep_log` in a temporary
    folder, so that it can be killed and started again. `chaos`, such as `"seed=42,duplicate=0.2,drop-reply=0.1"`,
    simulates faults, the same for the same requests, and implies `memory`; if the block raises, the faults that were
    played are written to standard error.
    """
    if keep_log and (memory or chaos is not None):
        raise ValueError("keep_log writes to a folder; memory and chaos need a log in memory")
    program = find_driftqd()
    if program is None:
        raise NoBroker("no driftqd found: set DRIFTQD, add it to PATH, or build it with `cargo build`")
    with tempfile.TemporaryDirectory(prefix="driftq-") as folder:
        if keep_log:
            storage = ["--data-dir", str(Path(folder) / "data")]
        elif chaos is not None:
            storage = ["--memory", "--chaos", chaos]
        else:
            storage = ["--memory" if memory else "--no-wal"]
        running = Broker(program, [*storage, *arguments], chaos)
        running.start()
        try:
            yield running
        except BaseException:  # pytest.fail() is no Exception
            if running.chaos is not None:
                sys.stderr.write(f"{running.describe_faults()}\n")
            raise
        finally:
            running.stop()
