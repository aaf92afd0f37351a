"""The README and the examples do what they say."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from driftq import Client, Identity, scopes
from driftq.testing import broker
from support import asynchronous, needs_broker

FOLDER = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_in_the_readme_compiles(block: str) -> None:
    compile(block, "README.md", "exec")


def test_worker_of_the_projects_page_is_the_one_that_is_run_here() -> None:
    page = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    (worker,) = (block for block in BLOCKS if "client.worker" in block)
    assert f"```python\n{worker}```" in page


async def script(code: str, url: str) -> asyncio.subprocess.Process:
    code = code.replace("http://127.0.0.1:8080", url)
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)


@needs_broker
@asynchronous
async def test_worker_of_the_readme_has_ten_lines_and_works() -> None:
    (worker,) = (block for block in BLOCKS if "client.worker" in block)
    assert len([line for line in worker.splitlines() if line]) <= 10
    with broker() as running:
        async with Client(running.url) as client:
            await client.topics.create("orders")
            await client.produce("orders", json={"pizza": "funghi"}, idempotency_key="order-7")
            process = await script(worker, running.url)
            of = Identity(scopes.consume("orders", "kitchen"), "order-7")
            # The worker is another process: its progress shows in the broker alone.
            while (effect := await client.effects.get(of)) is None or effect.status != "SUCCEEDED":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert effect.result == {"baked": "funghi"}
            process.terminate()
            assert await process.wait() == 0


@needs_broker
@asynchronous
async def test_producer_of_the_readme_works() -> None:
    (producer,) = (block for block in BLOCKS if "client.producer" in block)
    with broker() as running:
        process = await script(producer, running.url)
        output, _ = await process.communicate()
        assert process.returncode == 0
        assert b"Produced(partition=" in output
        async with Client(running.url) as client:
            partitions = (await client.topics.describe("orders"))["partitions"]
            assert sum(partition["messages"] for partition in partitions) == 10_001


@needs_broker
@asynchronous
async def test_broker_with_faults_of_the_readme_works() -> None:
    (block,) = (block for block in BLOCKS if "orders_stored" in block)
    defined: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), defined)
    assert await defined["orders_stored"]() == 50


@needs_broker
@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("orders.py", ["'error': 'not in this kitchen'", 'to deliver: {"pizza":"margherita","price":9}']),
        ("service.py", ["{'charged': 3}", "{'charged': 3, 'replayed': True}", "{'error': 'IDEMPOTENCY_MISMATCH'}"]),
    ],
)
@asynchronous
async def test_example_works(example: str, expected: list[str]) -> None:
    with broker() as running:
        process = await asyncio.create_subprocess_exec(
            sys.executable, FOLDER / "examples" / example, running.url, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        for text in expected:
            assert text in output.decode()
