"""Fixtures of pytest: `driftq_broker`, one broker for a session, and `driftq_start_broker`, brokers for one test.

Where a test fails while such a broker runs that simulates faults, its report has the seed and the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

# `driftq.testing` is imported where it is used: pytest loads this module in every project in which the client is
# installed.
if TYPE_CHECKING:
    from driftq.testing import Broker

_brokers = pytest.StashKey[list["Broker"]]()


def _skip_without_broker() -> None:
    from driftq.testing import find_driftqd

    if find_driftqd() is None:
        pytest.skip("no driftqd found: set DRIFTQD, add it to PATH, or build it")


@pytest.fixture(scope="session")
def driftq_broker() -> Iterator[Broker]:
    """A broker in memory; tests that use it are skipped where no `driftqd` is found."""
    from driftq.testing import broker

    _skip_without_broker()
    with broker() as running:
        yield running


@pytest.fixture
def driftq_start_broker(request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    """Starts brokers with the options of `driftq.testing.broker`, which are stopped after the test."""
    from driftq.testing import broker

    _skip_without_broker()
    brokers = request.node.stash.setdefault(_brokers, [])
    with ExitStack() as stack:

        def start(*arguments: str, **options: Any) -> Broker:
            running = stack.enter_context(broker(*arguments, **options))
            brokers.append(running)
            return running

        yield start


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, None]:
    """Adds the faults that were played to the report of a test that failed."""
    outcome = yield
    report = outcome.get_result()
    if call.when == "call" and report.failed:
        for running in item.stash.get(_brokers, []):
            if running.chaos is not None:
                report.sections.append(("faults of the DriftQ broker", running.describe_faults()))
