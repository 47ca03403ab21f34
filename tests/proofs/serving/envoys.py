"""What Envoy's own death costs, with one gateway and with two at the same address.

    python -m tests.proofs.serving.envoys [--kills 5] [--rate 200]

With one, nobody listens until its gateway has started the next. With two, whoever connects is
answered by the other: what is lost are the requests on the connections of the one that died. Its
other clients connect anew.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.serving.replies import Shot
from bench.serving.steady import Result, Steady
from holdfast.launch import processes
from tests.proofs.running import Words, conducted, hear_signals, say
from tests.proofs.serving.cluster import SERVICE, TIMEOUT_S, ServiceCluster, Violation
from tests.proofs.serving.models import BODY, right

CONNECTIONS: Final = 32
QUIET_S: Final = 0.5
REFUSED: Final = "connection: ECONNREFUSED"


@dataclass
class Envoys:
    """One run."""

    folder: Path
    say: Callable[[str], None]
    kills: int = 5
    rate: float = 200.0
    lost: dict[int, list[Counter[str]]] = field(default_factory=dict)  # by number of gateways
    ended: Counter[str] = field(default_factory=Counter)  # lost when one was ended politely
    total: Result = field(default_factory=Result)

    def run(self) -> None:
        with ServiceCluster(self.folder, 2) as served:
            shots = [Shot(f"/predict/{SERVICE}", BODY)]
            with Steady(
                served.address,
                shots,
                self.rate,
                right,
                connections=CONNECTIONS,
                timeout_s=TIMEOUT_S,
            ) as load:
                self._kill(served, load, 1)
                listen = ":".join(map(str, served.address))
                served.command("serve", SERVICE, "--gateway", listen, "--gateways", "2")
                self._kill(served, load, 2)
                served.command("serve", SERVICE, "--gateway", listen, "--gateways", "1")
                self._quiet(load, self.ended)
                self.total = load.stop()
        self._judge()

    def _kill(self, served: ServiceCluster, load: Steady, gateways: int) -> None:
        """Kill an Envoy again and again, each time another one; count what was lost."""
        served.await_back()
        before = load.cut()
        if before.failed:
            raise Violation(f"{before.failed} failed before an Envoy died: {dict(before.reasons)}")
        for number in range(self.kills):
            envoys = [one for one in processes.processes(served.cluster) if one.kind == "envoy"]
            if len(envoys) != gateways:
                raise Violation(f"{len(envoys)} Envoys live, not {gateways}")
            killed = envoys[number % gateways]
            killed.send(signal.SIGKILL)
            killed.wait(TIMEOUT_S)
            lost: Counter[str] = Counter()
            served.await_envoys(gateways)
            self._quiet(load, lost)
            self.lost.setdefault(gateways, []).append(lost)
            self.say(f"{gateways}: {lost.total()} requests lost {dict(lost)}")

    def _quiet(self, load: Steady, lost: Counter[str]) -> None:
        """Until nothing fails any more; `lost` gets what has."""
        until_s, quiet = time.monotonic() + TIMEOUT_S, 0
        while quiet < 2:
            time.sleep(QUIET_S)  # pause: what is looked at is what happens in this time
            part = load.cut()
            lost.update(part.reasons)
            quiet = 0 if part.failed else quiet + 1
            if time.monotonic() > until_s:
                raise Violation(f"requests fail and fail: {dict(lost)}")

    def _judge(self) -> None:
        for gateways, deaths in self.lost.items():
            for lost in deaths:
                strange = [why for why in lost if not why.startswith("connection: ")]
                if strange:
                    raise Violation(f"an Envoy's death has cost more than connections: {strange}")
                if gateways > 1 and (lost[REFUSED] or lost.total() > CONNECTIONS):
                    raise Violation(f"nobody listened beside the one that died: {dict(lost)}")

    def table(self) -> str:
        lines = [f"{self.total.sent:,} requests, {self.rate:g} a second"]
        for gateways, deaths in self.lost.items():
            counts = [lost.total() for lost in deaths]
            away_s = [count / self.rate for count in counts]
            lines.append(
                f"  {gateways} at the address, each of {len(deaths)} deaths of an Envoy: "
                f"{min(counts)} to {max(counts)} requests lost, "
                f"{min(away_s):.2f} to {max(away_s):.2f} s of them"
            )
        lines.append(f"  one of two ended politely: {self.ended.total()} lost {dict(self.ended)}")
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=Envoys.kills)
    parser.add_argument("--rate", type=float, default=Envoys.rate)
    given = parser.parse_args()
    hear_signals()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-envoys-"))
    campaign = Envoys(folder, say, given.kills, given.rate)
    command = f"python -m tests.proofs.serving.envoys --kills {given.kills} --rate {given.rate:g}"
    words = Words(campaign.table, command, "two lose what was on its way, and nothing else")
    return conducted(campaign.run, folder, words, Violation)


if __name__ == "__main__":
    sys.exit(main())
