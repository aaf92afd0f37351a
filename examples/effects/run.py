"""Runs every example of docs/effects.md, each against a broker of its own; PostgreSQL is started where one needs it.

python examples/effects/run.py [NAME …]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from driftq import Client
from driftq.testing import NoBroker, broker
from temporary_postgres import find_programs, temporary_postgres

NAMES = ("worker", "keys", "retries", "order", "conditional", "staging", "outbox")
NEED_POSTGRES = {"outbox"}


async def play(name: str, url: str, *arguments: str) -> None:
    """Runs one example. It asserts what it shows."""
    async with Client(url) as client:
        await importlib.import_module(name).main(client, *arguments)


def run(name: str) -> str:
    """Runs one example with the servers it needs; returns what became of it."""
    with broker() as server:
        if name not in NEED_POSTGRES:
            asyncio.run(play(name, server.url))
        elif find_programs() is None:
            return "skipped: no PostgreSQL server is installed"
        else:
            with temporary_postgres() as database:
                asyncio.run(play(name, server.url, database.conninfo))
    return "ok"


def main(names: Sequence[str]) -> int:
    """Runs the examples named, or all."""
    # Failures are part of the examples.
    logging.getLogger("driftq").addHandler(logging.NullHandler())
    try:
        for name in names:
            print(f"{name}: {run(name)}", flush=True)
    except NoBroker as error:
        print(f"cannot run: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="runs the examples of docs/effects.md")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of " + ", ".join(NAMES))
    chosen = parser.parse_args().names or NAMES
    if unknown := set(chosen) - set(NAMES):
        parser.error(f"there is no example {', '.join(sorted(unknown))}")
    sys.exit(main(chosen))
