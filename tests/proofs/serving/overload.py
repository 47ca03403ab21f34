"""Ten times what a service can answer: each request is answered, or turned away with the time after
which to come again; and afterwards all is as before.

    python -m tests.proofs.serving.overload [--seconds 20]

How fast it is does not count here: `python -m bench.serving.overload` measures that.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.serving.overload import COST_S, REPLICAS, answered_or_refused
from bench.serving.replies import Reply, Shot, anything
from bench.serving.steady import Result, Steady
from holdfast.models.records import Signature, TensorSpec
from tests.proofs.running import Words, conducted, hear_signals, say
from tests.proofs.serving.cluster import TIMEOUT_S, ServiceCluster, Violation
from tests.proofs.serving.models import publish_function

MODEL: Final = "twenty"
TIMES: Final = 10
# What both replicas can answer in a second, by the clock: the model sleeps.
CAPACITY: Final = REPLICAS / COST_S
CONNECTIONS: Final = 512
SIGNATURE: Final = Signature(
    (TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),), batches=False
)
_CODE: Final = f"""
import time

def predict(inputs):
    time.sleep({COST_S})
    return {{"y": inputs["x"]}}
"""


def right_or_refused(reply: Reply) -> str:
    """The check: the right answer, or when to come again."""
    return right(reply) if reply.status == 200 else answered_or_refused(reply)


def right(reply: Reply) -> str:
    wrong = anything(reply)
    if wrong:
        return wrong
    found = json.loads(reply.body)["y"]
    return "" if found == [[1.0, 2.0]] else f"the answer is {found}"


@dataclass
class Overload:
    """One run."""

    folder: Path
    say: Callable[[str], None]
    seconds: float = 20.0
    during: Result = field(default_factory=Result)
    after: Result = field(default_factory=Result)

    def run(self) -> None:
        with ServiceCluster(self.folder, 1) as served:
            code = self.folder / "overload-code"
            publish_function(served.cluster, served.session, code, MODEL, _CODE, SIGNATURE)
            words = ("--replicas", str(REPLICAS), "--cpu", "0.5", "--wait-max", "250ms")
            served.command("serve", MODEL, *words)
            self.during = self._load(served, TIMES * CAPACITY, right_or_refused)
            self.after = self._load(served, CAPACITY / 10, right)
        for what, found in (("during", self.during), ("after", self.after)):
            if found.failed:
                raise Violation(f"{what} it {found.failed} failed: {dict(found.reasons)}")
        if not (self.during.statuses[200] and self.during.statuses[503]):
            raise Violation(f"it was no overload, or nothing was answered: {self.table()}")

    def _load(self, served: ServiceCluster, rate: float, check: Callable[[Reply], str]) -> Result:
        shot = Shot(f"/predict/{MODEL}", b'{"x": [[1.0, 2.0]]}')
        with Steady(
            served.address,
            [shot],
            rate,
            check,
            connections=CONNECTIONS,
            timeout_s=TIMEOUT_S,
        ) as load:
            time.sleep(self.seconds)  # pause: the load lasts so long
            return load.stop()

    def table(self) -> str:
        during, after = self.during, self.after
        return (
            f"{during.sent:,} requests at {TIMES} times the capacity:"
            f" {during.statuses[200]:,} answered, {during.statuses[503]:,} turned away with"
            f" Retry-After, {during.failed} failed\n"
            f"{after.sent:,} requests afterwards, at a tenth of it: {after.failed} failed"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=Overload.seconds)
    given = parser.parse_args()
    hear_signals()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-overload-"))
    campaign = Overload(folder, say, given.seconds)
    command = f"python -m tests.proofs.serving.overload --seconds {given.seconds:g}"
    words = Words(campaign.table, command, "nothing that was accepted has failed")
    return conducted(campaign.run, folder, words, Violation)


if __name__ == "__main__":
    sys.exit(main())
