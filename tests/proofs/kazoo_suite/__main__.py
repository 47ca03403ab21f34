"""`python -m tests.proofs.kazoo_suite`: kazoo's own tests over our server; `--real` over theirs."""

from __future__ import annotations

import argparse
import sys

from tests.proofs.kazoo_suite.known import Verdict, judge, reasons
from tests.proofs.kazoo_suite.suite import Suite
from tests.servers import zookeeper_missing

JOBS = 3
AGAIN = 3


def say(line: str) -> None:
    print(line, flush=True)


def describe(verdict: Verdict) -> None:
    total = verdict.passed + verdict.failed + verdict.skipped
    for one, reason in verdict.named:
        say(f"  {one.state} {one.test}: {reason}")
    for one in verdict.unnamed:
        say(f"  UNEXPECTED {one.state} {one.test}: {one.reason}")
    for test in verdict.recovered:
        say(f"  UNEXPECTED pass of {test}: take it out of known.toml")
    counts = f"passed {verdict.passed}, failed {verdict.failed}, skipped {verdict.skipped}"
    say(f"{total} tests: {counts}; {len(verdict.named)} of the rest are named with a reason")


def run(*, real: bool, keyword: str, jobs: int) -> Verdict:
    """Run the suite and hold it against the table.

    Some of its tests give a server five seconds to come back, which a busy machine may not
    keep. So an unexpected failure is tried again, alone, up to `AGAIN` times; that it was is said.
    """
    if real and (missing := zookeeper_missing()):
        raise SystemExit(missing)
    suite = Suite(real=real, jobs=jobs, keyword=keyword, say=say)
    outcomes = {one.test: one for one in suite.run()}
    for one in judge(outcomes.values(), reasons(real)).unnamed:
        file, *_, name = one.test.split(".")
        for _ in range(AGAIN):
            say(f"once more, alone: {one.test} ({one.reason})")
            again = {each.test: each for each in suite.run_file(suite.folder / f"{file}.py", name)}
            outcomes[one.test] = again.get(one.test, one)
            if judge([outcomes[one.test]], reasons(real)).good:
                break
    return judge(outcomes.values(), reasons(real))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="a real ZooKeeper instead of ours")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only these tests (pytest -k)")
    parser.add_argument("--jobs", type=int, default=JOBS, help="test files at the same time")
    options = parser.parse_args()
    verdict = run(real=options.real, keyword=options.k, jobs=options.jobs)
    describe(verdict)
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
