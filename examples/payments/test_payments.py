"""The example holds, each planted mistake is found, and each check of the audit fails where it should."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from audit import Books, violations
from cluster import TARGETS, faults
from driftq.testing import find_driftqd
from ledger import Command
from plants import PLANTS
from temporary_postgres import find_programs

FOLDER = Path(__file__).parent

needs_servers = pytest.mark.skipif(
    find_programs() is None or find_driftqd() is None, reason="needs PostgreSQL (initdb, pg_ctl) and driftqd"
)

SECONDS = 6
SEED = 8
"""Five kills of workers, two of the database, one of the broker, one of everything."""
TIMEOUT_S = 600


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", "--seconds", str(SECONDS), *arguments],
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@needs_servers
def test_payments_are_made_once_whatever_is_killed() -> None:
    status, output = run("--seed", f"{SEED}")
    assert status == 0, output
    assert "holds: each payment was made once" in output
    assert re.search(r"killed: \d+ x", output), output


FINDINGS = {
    "double": "payments made more than once",
    "lost_update": "balances that are not those of the transfers",
    "early_receipt": "payments without exactly one receipt",
}


@needs_servers
@pytest.mark.parametrize("plant", PLANTS)
def test_planted_mistake_is_found(plant: str) -> None:
    status, output = run("--seed", f"{SEED}", "--plant", plant)
    assert status == 1, output
    assert f"{FINDINGS[plant]}: " in output, output


def test_faults_of_a_seed_are_always_the_same_and_hit_every_target() -> None:
    assert list(faults(1, 60)) == list(faults(1, 60))
    assert list(faults(1, 60)) != list(faults(2, 60))
    assert {fault.target for fault in itertools.chain(*(faults(seed, 60) for seed in range(4)))} == set(TARGETS)


PAID = Command("p-1", "a", "b", 30)
DECLINED = Command("p-2", "b", "a", 9_000)
OPENED = {"a": 100, "b": 100}
BOOKS = Books(
    accounts={"a": (70, 1), "b": (130, 1)},
    transfers=[PAID],
    statuses={PAID.key: "SUCCEEDED", DECLINED.key: "FAILED_FINAL"},
    retried=0,
    receipts=Counter({"p-1": 1}),
    dead_letters=[],
    expired_rows=0,
)


def test_books_in_order_have_no_violation() -> None:
    assert violations(BOOKS, OPENED, [PAID, DECLINED]) == []


@pytest.mark.parametrize(
    ("books", "found"),
    [
        (replace(BOOKS, accounts={"a": (70, 1), "b": (131, 1)}), "there were 200 cents, and there are 201"),
        (replace(BOOKS, accounts={"a": (60, 1), "b": (140, 1)}), "2 balances that are not those of the transfers"),
        (replace(BOOKS, accounts={"a": (70, 2), "b": (130, 1)}), "1 versions that do not count the transfers: a"),
        (
            replace(BOOKS, transfers=[PAID, PAID], accounts={"a": (40, 2), "b": (160, 2)}),
            "1 payments made more than once: p-1",
        ),
        (
            replace(BOOKS, transfers=[replace(PAID, cents=40)], accounts={"a": (60, 1), "b": (140, 1)}),
            "1 transfers that are not as ordered: p-1",
        ),
        (replace(BOOKS, statuses={PAID.key: "SUCCEEDED"}), "1 payments that have not ended: p-2"),
        (
            replace(BOOKS, statuses={PAID.key: "FAILED_FINAL", DECLINED.key: "FAILED_FINAL"}),
            "1 payments whose status and transfer disagree: p-1",
        ),
        (replace(BOOKS, receipts=Counter()), "1 payments without exactly one receipt: p-1"),
        (replace(BOOKS, receipts=Counter({"p-1": 2})), "1 payments without exactly one receipt: p-1"),
        (replace(BOOKS, receipts=Counter({"p-1": 1, "p-2": 1})), "1 receipts of payments that were not made: p-2"),
        (replace(BOOKS, dead_letters=[PAID]), "1 dead letters too many or too few: p-1"),
        (replace(BOOKS, expired_rows=7), "7 expired effects that were not swept"),
    ],
)
def test_audit_finds_what_does_not_hold(books: Books, found: str) -> None:
    assert any(text.startswith(found) for text in violations(books, OPENED, [PAID, DECLINED]))


def test_contradicting_order_has_to_be_a_dead_letter() -> None:
    other = replace(PAID, cents=31)
    assert violations(replace(BOOKS, dead_letters=[other]), OPENED, [PAID, DECLINED], [other]) == []
    assert violations(BOOKS, OPENED, [PAID, DECLINED], [other]) == ["1 dead letters too many or too few: p-1"]
