"""A run that must not skip does not skip in silence."""

from __future__ import annotations

import pytest

from tests.conftest import require_part, require_service

PROGRAM = """
import pytest
from tests.skips import judge

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    judge(report)
    return report
"""
TESTS = """
import pytest

def test_of_a_feature():
    pytest.skip("this system does not allow it")

@pytest.mark.skipif(True, reason="only root does that")
def test_of_root():
    pass

@pytest.fixture
def gpu():
    pytest.skip("this machine has no NVIDIA GPU")

def test_of_a_gpu(gpu):
    pass

def test_that_is_known_to_fail():
    pytest.xfail("known")
"""

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("strict", "outcomes"),
    [
        ("1", {"failed": 1, "errors": 1, "skipped": 1, "xfailed": 1}),
        ("", {"skipped": 3, "xfailed": 1}),
    ],
)
def test_a_skip_of_what_must_be_there_is_a_failure_where_services_are_required(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    strict: str,
    outcomes: dict[str, int],
) -> None:
    monkeypatch.setenv("HOLDFAST_REQUIRE_SERVICES", strict)
    pytester.makeconftest(PROGRAM)
    pytester.makepyfile(TESTS)
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    found.assert_outcomes(**outcomes)


def test_a_missing_service_skips_with_its_command_or_fails_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_service("")
    monkeypatch.delenv("HOLDFAST_REQUIRE_SERVICES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install it"):
        require_service("it is not installed; apt-get install it")
    monkeypatch.setenv("HOLDFAST_REQUIRE_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install it"):
        require_service("it is not installed; apt-get install it")


def test_a_part_that_is_not_there_is_skipped_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_REQUIRE_SERVICES", "1")
    require_part("")
    with pytest.raises(pytest.skip.Exception):
        require_part("MinIO's part minio-amd64.xz is not built for arm64")
