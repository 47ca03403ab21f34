"""kazoo's own tests over our server: those that need no long waits.

`python -m tests.proofs.kazoo_suite` runs all of them.
"""

from __future__ import annotations

import pytest

from tests.conftest import require_service
from tests.proofs.kazoo_suite.__main__ import describe, run
from tests.proofs.kazoo_suite.known import judge, reasons
from tests.proofs.kazoo_suite.suite import Outcome
from tests.proofs.kazoo_suite.workshop import WorkshopMissing, workshop_python

pytestmark = pytest.mark.engines

# Most of the client's tests and the recipes'; without those that wait for a time-out of seconds, or
# want a server to be back within five.
QUICK = (
    "TestClient or TestSSLClient or TestAuthentication or TestBuildEnvironment"
    " or KazooLockTests or KazooQueueTests or KazooPartyTests"
)
SLOW = "test_update_host_list or request_queuing or timeout or many_threads or TestConnection"
PASSED_MIN = 90


def test_kazoos_own_tests_pass_on_our_server() -> None:
    try:
        workshop_python()
    except WorkshopMissing as missing:
        require_service(str(missing))
    verdict = run(real=False, keyword=f"({QUICK}) and not ({SLOW})", jobs=2)
    describe(verdict)
    assert verdict.good, (verdict.unnamed, verdict.recovered)
    assert verdict.passed >= PASSED_MIN


def test_a_failure_without_a_reason_and_a_pass_with_one_are_both_errors() -> None:
    known = {"test_a.T.known": "needs an ensemble"}
    good = [Outcome("test_a.T.known", "failed", "x"), Outcome("test_a.T.other", "passed", "")]
    assert judge(good, known).good
    assert not judge([Outcome("test_a.T.other", "failed", "x")], known).good
    assert not judge([Outcome("test_a.T.known", "passed", "")], known).good


def test_at_least_307_of_the_320_tests_are_left_by_the_table() -> None:
    assert 320 - len(reasons(real=False)) >= 307
