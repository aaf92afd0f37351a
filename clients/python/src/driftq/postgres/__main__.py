"""`python -m driftq.postgres schema` prints the schema; `… migrate CONNINFO` brings a database up to date."""

from __future__ import annotations

import asyncio
import sys

from psycopg import AsyncConnection

from driftq.postgres.migrations import migrate, schema


async def _migrate(conninfo: str) -> list[int]:
    async with await AsyncConnection.connect(conninfo) as connection:
        return await migrate(connection)


def main(arguments: list[str]) -> int:
    """Runs the program; returns its exit status."""
    match arguments:
        case ["schema"]:
            sys.stdout.write(schema())
        case ["migrate", conninfo]:
            applied = asyncio.run(_migrate(conninfo))
            sys.stdout.write(f"applied: {', '.join(map(str, applied)) or 'nothing'}\n")
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
