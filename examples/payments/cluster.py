"""What the example runs: a database, a broker, worker processes; and the faults that hit them."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from driftq.testing import Broker, broker
from temporary_postgres import TemporaryPostgres, temporary_postgres

SERVICE = Path(__file__).with_name("service.py")
STOP_TIMEOUT_S = 30.0
WORKERS = 2

BETWEEN_FAULTS_S = (0.2, 0.8)
DOWN_S = (0.05, 0.4)
TARGETS = {"worker": 5, "broker": 2, "database": 2, "everything": 1}
"""What a fault hits, with weights."""


class WorkerProcess:
    """A worker of the service."""

    def __init__(self, name: str, command: list[str]) -> None:
        self._command = [*command, "--name", name]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def wait_until_ready(self) -> None:
        """Waits until it takes messages, which it says by a line."""
        assert self._process is not None, "it has been started"
        assert self._process.stdout is not None, "its output is a pipe"
        if self._process.stdout.readline() == b"":
            raise RuntimeError("a worker has ended before it was ready")

    def kill(self) -> None:
        """Ends it at once."""
        assert self._process is not None, "only a running worker is killed"
        ended = self._process.poll()
        self._end()
        if ended is not None:
            raise RuntimeError(f"a worker ended by itself with status {ended}")

    def stop(self) -> None:
        """Asks it to end, and waits for that. `RuntimeError` if it has failed."""
        if self._process is None:
            return
        self._process.terminate()
        status = None
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(STOP_TIMEOUT_S)
        self._end()
        if status != 0:
            raise RuntimeError("a worker did not stop in time" if status is None else f"a worker failed with {status}")

    def _end(self) -> None:
        assert self._process is not None, "it has been started"
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


@dataclass
class Cluster:
    """The parts of a running example."""

    database: TemporaryPostgres
    broker: Broker
    workers: list[WorkerProcess]


@contextmanager
def cluster(plant: str | None) -> Iterator[Cluster]:
    """A database and a broker on temporary folders, and workers that have not been started."""
    with temporary_postgres() as database, broker(keep_log=True) as server:
        command = [sys.executable, str(SERVICE), "--broker", server.url, "--database", database.conninfo]
        if plant:
            command += ["--plant", plant]
        workers = [WorkerProcess(f"worker-{number}", command) for number in range(1, WORKERS + 1)]
        try:
            yield Cluster(database, server, workers)
        finally:
            for worker in workers:
                worker.stop()


@dataclass(frozen=True)
class Fault:
    """One fault: what it hits, after which pause, and how long that stays down."""

    after_s: float
    target: str
    worker: int
    down_s: float


def faults(seed: int, seconds: float) -> Iterator[Fault]:
    """The faults of a run, the same for the same seed."""
    draw = random.Random(f"faults {seed}")
    elapsed = 0.0
    while True:
        fault = Fault(
            after_s=draw.uniform(*BETWEEN_FAULTS_S),
            target=draw.choices(list(TARGETS), list(TARGETS.values()))[0],
            worker=draw.randrange(WORKERS),
            down_s=draw.uniform(*DOWN_S),
        )
        elapsed += fault.after_s + fault.down_s
        if elapsed > seconds:
            return
        yield fault


async def inject(parts: Cluster, seed: int, seconds: float) -> Counter[str]:
    """Plays the faults of a seed; returns how many hit what. Everything runs again when it returns."""
    hit: Counter[str] = Counter()
    for fault in faults(seed, seconds):
        await asyncio.sleep(fault.after_s)
        everything = fault.target == "everything"
        hit_workers = parts.workers if everything else [parts.workers[fault.worker]]
        if everything or fault.target == "worker":
            for worker in hit_workers:
                worker.kill()
        if everything or fault.target == "broker":
            await asyncio.to_thread(parts.broker.kill)
        if everything or fault.target == "database":
            await asyncio.to_thread(parts.database.crash)
        await asyncio.sleep(fault.down_s)
        if everything or fault.target == "database":
            await asyncio.to_thread(parts.database.start)
        if everything or fault.target == "broker":
            await asyncio.to_thread(parts.broker.start)
        if everything or fault.target == "worker":
            for worker in hit_workers:
                worker.start()
                # A fault that hits a process which is still starting shows nothing.
                await asyncio.to_thread(worker.wait_until_ready)
        hit[fault.target] += 1
    return hit
