"""Serving with the prediction topic on and off, side by side.

    python -m bench.serving.prediction_topic                     # two replicas behind the gateway
    python -m bench.serving.prediction_topic --rounds 9 --seconds 8
    python -m bench.serving.prediction_topic --direct            # one replica, without a gateway

One cluster, with our broker beside it. Windows with the topic on and off take turns (off, on, on,
off, …), so that whatever else the machine does meets both: in each, wrk with 32 connections, as
fast as it can; then a constant rate in an open loop. The setting is changed as users change it,
while the service runs. Every request is told to the topic; the broker's work counts. At the end all
records are counted: what was answered while the topic was on is there, or was counted as dropped.
Beside the ratios stands the noise: windows without the topic beside each other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from bench.coordination.machine import BUSY_LOAD, load_average
from bench.serving import wrk
from bench.serving.cluster import ServingCluster, await_
from bench.serving.contestants import MARK, RESULTS, ROOT, cpu_s, end_when_told, free_port, rest
from bench.serving.ours import Gateway, OneReplica
from bench.serving.steady import Steady
from holdfast import topics
from holdfast.cluster import topics as cluster_topics
from holdfast.serve.controller.controller import ask
from holdfast.serve.prediction_topic import topic_of
from holdfast.serve.records import PredictionCounts, ServiceSpec

WARM_S: Final = 2
# Records that are on their way when a window ends are its work too.
SETTLE_S: Final = 1.0
GOAL: Final = 0.03


@dataclass
class Window:
    """What was measured in one window; latencies in ms."""

    on: bool
    rate: float
    wrk_p99: float
    cpu_us: float
    steady_p99: float
    requests: int
    bad: int
    reasons: list[str] = field(default_factory=list)


class Broker:
    """Our broker, as a process of the contestant."""

    def __init__(self, folder: Path) -> None:
        self.listen = f"127.0.0.1:{free_port()}"
        words = ["--data", str(folder / "topics"), "--listen", self.listen]
        with (folder / "broker.log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "holdfast.topics.broker", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT), MARK: str(folder)},
            )

    def close(self) -> None:
        self._child.terminate()
        self._child.wait(60)


class Measured:
    """The service that is measured, with its topic on or off."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        kind = OneReplica if given.direct else Gateway
        self.given, self.folder = given, folder
        self.contestant = kind(folder, given.model)
        self.broker = Broker(folder)
        self.address = f"kafka://{self.broker.listen}"
        cluster = ServingCluster(folder)
        self.cluster = self.contestant._cluster = cluster
        cluster_topics.use(cluster.session, self.address)
        cluster.start_all()
        cluster.serve_work(given.model, self.contestant.replicas)
        self.contestant.address = self.contestant._address(cluster)
        self.contestant.await_ready(given.format == "binary")
        self.shot = self.contestant.shot(given.format == "binary")

    def switch(self, on: bool) -> None:
        """As `holdfast serve … --predictions-topic`; returns when every replica has taken it."""

        def change(service: ServiceSpec) -> ServiceSpec:
            return replace(service, predictions=replace(service.predictions, topic=on))

        self.cluster.services.update(self.given.model, change, "for the bench")
        word = b"holdfast_predictions_sent_total"
        addresses = self.cluster.replicas(self.given.model)
        await_("the setting", lambda: all((word in _metrics(one)) == on for one in addresses))

    def window(self, on: bool) -> Window:
        given = self.given
        self.switch(on)
        wrk.wrk(self.contestant.address, self.shot, WARM_S, self.folder, given.core, 32)
        rest(self.folder)
        used_s = cpu_s(self.folder)
        found = wrk.wrk(
            self.contestant.address, self.shot, given.seconds, self.folder, given.core, 32
        )
        time.sleep(SETTLE_S)
        cpu_us = (cpu_s(self.folder) - used_s) / max(1, found.requests) * 1e6
        check = self.contestant.check
        with Steady(
            self.contestant.address, [self.shot], given.rate, check, core=given.core
        ) as load:
            time.sleep(given.seconds)
        total = load.total
        reasons = [f"{count} x {why}" for why, count in total.reasons.most_common(3)]
        bad = found.bad + total.failed + total.unsent
        made = Window(on, found.rate, found.p99_ms, cpu_us, total.p_ms(99), found.requests, bad)
        made.reasons = reasons
        return made

    def counts(self) -> PredictionCounts:
        """Of all replicas, when nothing waits any more."""
        service = self.cluster.services.service(self.given.model)
        replicas = self.cluster.services.replicas(self.given.model).values()

        def settled() -> list[PredictionCounts] | None:
            found = [ask(one, service.secret).predictions for one in replicas]
            return None if any(one.waiting for one in found) else found

        found = await_("all records to be told", settled)
        return PredictionCounts(sum(one.sent for one in found), sum(one.dropped for one in found))

    def recorded(self) -> int:
        """Records in the topic."""
        with topics.connect(self.address) as cluster:
            return sum(cluster.admin.offsets(topic_of(self.given.model), "latest").values())

    def close(self) -> None:
        self.contestant.close()
        self.broker.close()


def _metrics(address: tuple[str, int]) -> bytes:
    with urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=10) as answer:
        found: bytes = answer.read()
        return found


def order(rounds: int) -> list[bool]:
    """Off, on, on, off, and so on: what slowly changes meets both."""
    return [on for number in range(rounds) for on in ((False, True), (True, False))[number % 2]]


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    off: float
    on: float
    noise: float  # windows without the topic, the worse half to the better one

    @property
    def ratio(self) -> float:
        return self.on / self.off


def lines(windows: Sequence[Window]) -> list[Line]:
    found = []
    for what, name in (
        ("requests/s", "rate"),
        ("p99 under wrk, ms", "wrk_p99"),
        ("p99 at a constant rate, ms", "steady_p99"),
        ("CPU us a request", "cpu_us"),
    ):
        off = [getattr(one, name) for one in windows if not one.on]
        on = [getattr(one, name) for one in windows if one.on]
        noise = math.nan
        if len(off) > 1:
            halves = statistics.median(off[::2]), statistics.median(off[1::2])
            noise = max(halves) / min(halves) - 1
        found.append(Line(what, statistics.median(off), statistics.median(on), noise))
    return found


def show(windows: Sequence[Window], counts: PredictionCounts, recorded: int) -> None:
    print(f"\n{'':30}{'off':>11}{'on':>11}{'ratio':>8}{'noise':>8}  goal")
    for line in lines(windows):
        worse = 1 / line.ratio if line.what == "requests/s" else line.ratio
        goal = "" if line.what.startswith("CPU") else "reached" if worse <= 1 + GOAL else "MISSED"
        if goal == "MISSED" and worse - 1 <= line.noise:
            goal = "within the noise"
        print(
            f"{line.what:30}{line.off:>11,.2f}{line.on:>11,.2f}{line.ratio:>8.3f}"
            f"{line.noise:>8.3f}  {goal}"
        )
    print(f"told {counts.sent}, dropped {counts.dropped}; records in the topic: {recorded}")
    for one in windows:
        for why in one.reasons:
            print(f"    {why}")


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--model", choices=["small", "heavy"], default="small")
    add("--format", choices=["json", "binary"], default="json")
    add("--direct", action="store_true", help="one replica, without a gateway")
    add("--rounds", type=int, default=6, help="of two windows each")
    add("--seconds", type=int, default=5, help="of each measurement")
    add("--rate", type=float, default=1000.0, help="of the constant one")
    add("--core", type=int, default=(os.cpu_count() or 1) - 1, help="of the load generators")
    add("--json", type=Path)
    given = options.parse_args(argv)
    if wrk.missing():
        raise SystemExit(wrk.missing())
    end_when_told()
    RESULTS.mkdir(exist_ok=True)
    load = load_average()
    print(f"{given.model} model, {given.format}, load before {load:.1f}", flush=True)
    if load > BUSY_LOAD:
        print("the machine was busy: these figures are not to be quoted")
    windows: list[Window] = []
    with tempfile.TemporaryDirectory(prefix="predictions-", dir=RESULTS) as held:
        measured = Measured(Path(held, "it"), given)
        sent = dropped = 0
        turns = order(given.rounds)
        try:
            for on, after in zip(turns, [*turns[1:], False], strict=True):
                windows.append(measured.window(on))
                one = windows[-1]
                print(
                    f"  {'on ' if on else 'off'} {one.rate:,.0f}/s {one.cpu_us:.0f} us", flush=True
                )
                if on and not after:  # a replica counts anew when it is switched on
                    counts = measured.counts()
                    sent, dropped = sent + counts.sent, dropped + counts.dropped
            recorded = measured.recorded()
        finally:
            measured.close()
    show(windows, PredictionCounts(sent, dropped), recorded)
    if given.json:
        plain = [asdict(one) for one in windows]
        given.json.write_text(json.dumps({"load": load, "windows": plain}, indent=2))
    return 1 if any(one.bad for one in windows) or recorded != sent else 0


if __name__ == "__main__":
    raise SystemExit(main())
