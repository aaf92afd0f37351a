"""Outputs outside a database: written to a staging location, committed by the store, cleaned up later."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from driftq import Client, Execute, Identity, InProgressElsewhere, Replay, StaleLease, idempotency_key, scopes


def export_of(version: int) -> Identity:
    """The effect: one export for each version of the data."""
    return Identity(scopes.task(idempotency_key("export", version)), "file")


async def begin_export(client: Client, version: int, owner: str, lease: float) -> Execute | Replay:
    """Waits until the export is granted, or is done."""
    while True:
        decision = await client.effects.begin(export_of(version), owner=owner, lease=lease)
        if not isinstance(decision, InProgressElsewhere):
            assert isinstance(decision, (Execute, Replay)), "a task is taken over when its lease has run out"
            return decision
        await asyncio.sleep(decision.retry_after)


def staged_in(folder: Path) -> list[Path]:
    """The files of all attempts."""
    return sorted(folder.iterdir())


def write(folder: Path, version: int, attempt: int) -> Path:
    """Writes to a name that no other attempt uses: a worker that has been replaced overwrites nothing."""
    staged = folder / f"{version}.{attempt}.csv"
    staged.write_text(f"data of version {version}\n")
    return staged


async def commit(client: Client, version: int, grant: Execute, staged: Path) -> None:
    """Makes the file the output. Only the newest attempt can; readers follow the result."""
    await client.effects.finish(
        export_of(version), lease_token=grant.lease_token, status="SUCCEEDED", result={"file": staged.name}
    )


async def clean_up(client: Client, folder: Path) -> list[str]:
    """Removes files of attempts that have lost. Never one that is, or may become, an output."""
    removed = []
    for staged in staged_in(folder):
        version, attempt, _ = staged.name.split(".")
        effect = await client.effects.get(export_of(int(version)))
        # An effect that is not known any more says nothing about its file.
        if effect is None:
            continue
        is_output = effect.status == "SUCCEEDED" and effect.result["file"] == staged.name
        is_being_written = effect.status == "IN_PROGRESS" and effect.attempt == int(attempt)
        if not (is_output or is_being_written):
            staged.unlink()
            removed.append(staged.name)
    return removed


async def main(client: Client) -> None:
    """Runs the example: the first worker is too slow, and the second one replaces it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slow = await begin_export(client, 5, "slow", lease=0.1)
        assert isinstance(slow, Execute)
        slow_file = write(folder, 5, slow.attempt)
        quick = await begin_export(client, 5, "quick", lease=30)
        assert isinstance(quick, Execute)
        quick_file = write(folder, 5, quick.attempt)
        assert await clean_up(client, folder) == [slow_file.name]
        slow_file = write(folder, 5, slow.attempt)
        await commit(client, 5, quick, quick_file)
        try:
            await commit(client, 5, slow, slow_file)
        except StaleLease:
            pass
        else:
            raise AssertionError("two attempts were committed")
        assert await clean_up(client, folder) == [slow_file.name]
        done = await begin_export(client, 5, "reader", lease=30)
        assert isinstance(done, Replay)
        assert (folder / done.result["file"]).read_text() == "data of version 5\n"
