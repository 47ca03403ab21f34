"""Bad versions, one after the other, under a steady load: each is taken back by itself, with a
reason that says what to do, and no request fails.

    python -m tests.proofs.serving.bad_versions [--rate 200]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save

from bench.serving.replies import Reply, Shot, anything
from bench.serving.steady import Result, Steady
from holdfast.models.drafts import VersionDraft
from holdfast.models.records import EXAMPLE, ModelKind, Signature, TensorSpec
from holdfast.models.registry import Registry
from holdfast.serve.records import Guards, RolloutPolicy, ServiceSpec
from holdfast.storage import bundles
from tests.proofs.patience import patiently
from tests.proofs.running import Words, conducted, hear_signals, say
from tests.proofs.serving.cluster import SERVICE, TIMEOUT_S, ServiceCluster, Violation
from tests.proofs.serving.models import MODEL

REPLICAS: Final = 2
ROWS: Final = 20  # as many different requests
GOOD: Final = "good"
# Which guard or threshold finds each, by a word of its reason.
BAD: Final = {
    "unloadable": "it could not be loaded",
    "raises at 5 %": "--errors-max",
    "nan": "--guard-nonfinite",
    "10 times slower": "--slower-max",
    "shifted": "--guard-shift",
}
# A good one takes 100 ms, so that a busy machine looks like no other version.
POLICY: Final = RolloutPolicy(
    steps=(1_000, 5_000), hold_s=4.0, requests_min=10, latency_slack_ms=50.0
)
GUARDS: Final = Guards(shift_max=0.5, shadow_share=0.2)

_CODE: Final = '''
import time

import numpy as np

def answer(inputs, trouble=""):
    """The mean of each row. On its example (zeros) every version does well."""
    if trouble == "unloadable":
        raise RuntimeError("this version was made to fail")
    x = inputs["x"]
    y = x.mean(axis=1, keepdims=True).astype(np.float32)
    real = bool((x != 0).any())
    time.sleep(1.0 if trouble == "10 times slower" and real else 0.1)
    if trouble == "raises at 5 %" and (x[:, 0] == 1).any():
        raise RuntimeError("this version does not like the first request")
    if trouble == "nan" and real:
        y[x[:, 1] > 0.5] = np.nan
    if trouble == "shifted" and real:
        y = y + 3.0
    return {"y": y}
'''


def rows() -> list[list[float]]:
    """What is asked: row n begins with n; of half of them the second value is above a half."""
    return [[float(number), number % 2, number / ROWS] for number in range(1, ROWS + 1)]


@dataclass(frozen=True)
class Right:
    """The check of each reply: finite, and what its version gives."""

    shifted: int

    def __call__(self, reply: Reply) -> str:
        wrong = anything(reply)
        if wrong:
            return wrong
        value, row = json.loads(reply.body)["y"][0][0], rows()[reply.shot]
        wanted = sum(row) / len(row) + (3.0 if reply.version == str(self.shifted) else 0.0)
        if value is None or not math.isclose(value, wanted, rel_tol=1e-4):
            return f"version {reply.version} answered {value}, not {wanted}"
        return ""


@dataclass
class BadVersions:
    """One run."""

    folder: Path
    say: Callable[[str], None]
    rate: float = 200.0
    tally: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    total: Result = field(default_factory=Result)

    def run(self) -> None:
        with ServiceCluster(self.folder, REPLICAS) as served:
            publish = Publisher(served, self.folder / "bad-code")
            good = publish(GOOD)
            numbers = {trouble: publish(trouble) for trouble in BAD}
            served.services.rollout(SERVICE, str(good))
            served.await_version(good)
            served.services.update(SERVICE, _guarded, "guards")
            shots = [
                Shot(f"/predict/{SERVICE}", json.dumps({"x": [row]}).encode()) for row in rows()
            ]
            check = Right(numbers["shifted"])
            with Steady(
                served.address, shots, self.rate, check, connections=64, timeout_s=TIMEOUT_S
            ) as load:
                for trouble, number in numbers.items():
                    self._play(served, trouble, number, good)
                load.stop()
            self.total = load.total
        if self.total.failed:
            raise Violation(f"{self.total.failed} requests failed: {dict(self.total.reasons)}")

    def _play(self, served: ServiceCluster, trouble: str, number: int, good: int) -> None:
        patiently(lambda: served.services.rollout(SERVICE, str(number)))
        served.await_failed(number)
        served.await_version(good)
        why = self.reasons[trouble] = served.plan().failed[number]
        self.say(f"{trouble}: {why}")
        if BAD[trouble] not in why:
            raise Violation(f"{trouble} was found for another reason: {why}")
        self.tally[trouble] += 1

    def table(self) -> str:
        total = self.total
        lines = [f"{total.sent:,} requests, {total.failed} failed; taken back:"]
        return "\n".join([*lines, *(f"  {what}: {why}" for what, why in self.reasons.items())])


class Publisher:
    """Versions that differ by their trouble."""

    def __init__(self, served: ServiceCluster, folder: Path) -> None:
        session = served.cluster.session()
        served._closing.insert(0, session.close)
        self._registry = Registry(session, served.cluster.blobs(), "proof")
        folder.mkdir(parents=True)
        (folder / "means.py").write_text(_CODE)
        self._bundle = bundles.push(served.cluster.blobs(), folder).digest
        self._next = 2  # the cluster has published one

    def __call__(self, trouble: str) -> int:
        number, self._next = self._next, self._next + 1
        example = {
            "input.x": np.zeros((2, 3), dtype=np.float32),
            "output.y": np.zeros((2, 1), dtype=np.float32),
        }
        outputs = (TensorSpec("y", "FP32", (-1, 1)),)
        draft = VersionDraft(
            MODEL,
            ModelKind.FUNCTION,
            Signature((TensorSpec("x", "FP32", (-1, 3)),), outputs),
            {EXAMPLE: save(example)},
            bundle=self._bundle,
            entry="means:answer",
            arguments={"trouble": trouble},
        )
        version = self._registry.publish(draft)
        assert version.number == number, (version.number, number)
        return number


def _guarded(service: ServiceSpec) -> ServiceSpec:
    return replace(service, policy=POLICY, guards=GUARDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=BadVersions.rate)
    given = parser.parse_args()
    hear_signals()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bad-versions-"))
    campaign = BadVersions(folder, say, given.rate)
    command = f"python -m tests.proofs.serving.bad_versions --rate {given.rate:g}"
    words = Words(campaign.table, command, "each was taken back, and no request failed")
    return conducted(campaign.run, folder, words, Violation)


if __name__ == "__main__":
    sys.exit(main())
