"""The page on effects shows code that is run: each of its blocks is part of an example, and the examples hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from driftq.testing import broker, find_driftqd
from temporary_postgres import find_programs

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PAGE = (ROOT / "docs" / "effects.md").read_text(encoding="utf-8")
SOURCES = {
    "python": [
        *sorted(FOLDER.glob("*.py")),
        ROOT / "examples/payments/service.py",
        ROOT / "examples/rpc/idempotent.py",
    ],
    "ts": [ROOT / "clients/typescript/examples/effects.ts"],
    "rust": [ROOT / "clients/rust/examples/effects.rs"],
}
NAMES = ("worker", "keys", "retries", "order", "conditional", "staging", "outbox")
TIMEOUT_S = 120

needs_broker = pytest.mark.skipif(find_driftqd() is None, reason="no driftqd found: set DRIFTQD or build it")


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_page_has_code_in_every_language() -> None:
    assert {language for language, _ in blocks()} == {*SOURCES, "sh"}


@pytest.mark.parametrize(("language", "block"), [block for block in blocks() if block[0] in SOURCES])
def test_block_of_the_page_is_part_of_an_example(language: str, block: str) -> None:
    assert any(block in source.read_text(encoding="utf-8") for source in SOURCES[language]), block


def test_every_example_is_shown() -> None:
    shown = "\n".join(PAGE.split("```"))
    for name in NAMES:
        assert f"examples/effects/{name}.py" in shown, name


@needs_broker
@pytest.mark.parametrize("name", NAMES)
def test_example_holds(name: str) -> None:
    if name == "outbox" and find_programs() is None:
        pytest.skip("needs PostgreSQL (initdb, pg_ctl)")
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", name], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stdout) == (0, f"{name}: ok\n"), done.stderr


def test_examples_of_the_page_are_those_that_can_be_run() -> None:
    done = subprocess.run([sys.executable, FOLDER / "run.py", "-h"], capture_output=True, text=True, check=True)
    assert "of " + ", ".join(NAMES) in " ".join(done.stdout.split())


def compiled_examples() -> dict[str, list[str]]:
    """The commands of the examples in other languages."""
    program = find_driftqd()
    beside = [] if program is None else [program.parent / "examples/effects"]
    rust = [str(path) for path in beside if path.is_file()]
    typescript = ROOT / "clients/typescript/build/examples/effects.js"
    node = shutil.which("node")
    return {"rust": rust, "typescript": [node, str(typescript)] if node and typescript.is_file() else []}


@needs_broker
@pytest.mark.parametrize("language", ["rust", "typescript"])
def test_example_in_another_language_holds(language: str) -> None:
    command = compiled_examples()[language]
    if not command:
        pytest.skip("needs cargo build -p driftq-client --example effects, npm test in clients/typescript")
    with broker() as server:
        environment = {**os.environ, "DRIFTQ_URL": server.url}
        arguments = [server.url] if language == "rust" else []
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
