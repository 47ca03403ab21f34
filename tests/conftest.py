"""Fixtures that every test may use: the planes, and what to do about a missing service."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import minutes, scratch, skips
from tests.contract.planes import TICK_MS, EmbeddedPlane, EnsemblePlane, Plane, ZooKeeperPlane
from tests.order import Scheduling, is_large, place_of
from tests.servers import ZooKeeperEnsemble, ZooKeeperServer, zookeeper_missing
from tests.servers.zookeeper import SESSION_MAX_MS

# A busy machine is no bug: no example fails for the time that it took. The same examples in every
# run, so that a change is judged by itself; HOLDFAST_EXPLORE=1 looks for new ones.
settings.register_profile("holdfast", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("explore" if os.environ.get("HOLDFAST_EXPLORE") else "holdfast")


# Reports of a whole run: three a test.
MINUTES_SHOWN_FROM = 500
_begun_s = time.monotonic()

scratch.choose()

# A shell lets what it starts in the background ignore Ctrl-C, and so would whatever tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_large(item.nodeid):
            item.add_marker(pytest.mark.engines)
    items.sort(key=lambda item: place_of(item.nodeid))


def pytest_collection_finish() -> None:
    """What was collected stays to the end: it is not searched for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    skips.judge(report)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The minutes of each group, where so much ran that somebody may ask where they went."""
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if isinstance(report, pytest.TestReport)
    ]
    if len(reports) < MINUTES_SHOWN_FROM:
        return
    terminalreporter.section("minutes, of all workers together")
    for line in minutes.table((report.nodeid, report.duration) for report in reports):
        terminalreporter.write_line(line)
    took_s = time.monotonic() - _begun_s
    terminalreporter.write_line(
        minutes.expectation(terminalreporter.config.option.markexpr, took_s)
    )


def require_service(missing: str) -> None:
    """Skip the test with the command that installs what is missing; fail it where none may be."""
    if not missing:
        return
    if skips.strict():
        pytest.fail(f"HOLDFAST_REQUIRE_SERVICES=1, but {missing}")
    pytest.skip(missing)


def require_part(missing: str) -> None:
    """Skip the test where an engine is not beside the checkout, or not for this machine: nothing
    installs those. Where it is there, nothing skips, and it must start."""
    if missing:
        pytest.skip(missing)


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three real ZooKeeper servers, started for the first test that wants them."""
    require_service(zookeeper_missing())
    servers = ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble"))
    try:
        yield servers.start()
    finally:
        servers.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One real ZooKeeper server, started for the first test that wants it."""
    require_service(zookeeper_missing())
    options = {"tickTime": TICK_MS, "maxSessionTimeout": SESSION_MAX_MS}
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), options=options) as server:
        yield server


@pytest.fixture(
    params=["embedded", "zookeeper", pytest.param("ensemble", marks=pytest.mark.engines)]
)
def plane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Plane]:
    """A coordination plane with nothing in it, that can be disturbed."""
    made: Plane
    if request.param == "embedded":
        made = EmbeddedPlane(tmp_path / "plane")
    elif request.param == "zookeeper":
        made = ZooKeeperPlane([request.getfixturevalue("zookeeper")])
    else:
        made = EnsemblePlane(request.getfixturevalue("ensemble"))
    try:
        yield made
    finally:
        made.end()
