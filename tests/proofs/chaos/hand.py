"""The hand that does what a script says, and takes it back when its time is over."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tests.proofs.chaos.cast import CLIENT
from tests.proofs.chaos.histories import Strike
from tests.proofs.chaos.network import end
from tests.proofs.chaos.processes import HostProcesses
from tests.proofs.chaos.script import Act, all_, any_, leading
from tests.proofs.control.events import Fault
from tests.proofs.control.processes import Found, Kept

T = TypeVar("T")
# What the figures call it.
COUNTED: Final = {
    "kill": "kills",
    "pause": "pauses",
    "restart": "restarts",
    "cut": "cuts",
    "slow": "slowed links",
    "rollout": "rollouts",
    "rollback": "rollbacks",
    "fill": "full disks",
}


@dataclass(frozen=True, slots=True)
class _Later:
    """Something to take back."""

    at_s: float
    words: str
    undo: Callable[[], object]


class Hand:
    """`roll` is given rollouts and rollbacks: they take their time elsewhere."""

    def __init__(self, processes: HostProcesses, roll: Callable[[Act], bool]) -> None:
        self._processes = processes
        self._roll = roll
        self._later: list[_Later] = []
        self.tally: Counter[str] = Counter()
        self.last = ""

    def do(self, act: Act) -> list[str]:
        """Whom it struck; nobody, if there was nobody of that kind."""
        match act.verb:
            case "kill" | "pause" | "restart":
                struck = self._strike(act)
            case "cut":
                struck = self._cut(act)
            case "slow":
                struck = self._slow(act)
            case "fill":
                struck = self._fill(act)
            case _:
                struck = [act.what] if self._roll(act) else []
        if struck:
            self.last = f"{act.what}: {', '.join(struck)}"
            self.tally[COUNTED[act.verb]] += 1
            if act.verb == "kill":
                self.tally["processes killed"] += len(struck)
                self.tally[f"kills of {act.kind}"] += 1
            self._processes.note(Fault(time.time(), act.what, ", ".join(struck)))
        return struck

    def turn(self) -> None:
        """Take back what has lasted long enough. Asked often."""
        self._processes.disks.press()
        now_s = time.monotonic()
        for one in [one for one in self._later if one.at_s <= now_s]:
            self._later.remove(one)
            one.undo()
            self._processes.note(Fault(time.time(), "over", one.words))

    def peace(self) -> None:
        """Take back everything, and let all come back."""
        later, self._later = self._later, []
        for one in later:
            one.undo()
        self._processes.note(Fault(time.time(), "peace", "everything is healed"))
        self._processes.all_back()

    def _afterwards(self, lasts_s: float, words: str, undo: Callable[[], object]) -> None:
        self._later.append(_Later(time.monotonic() + lasts_s, words, undo))

    # --- processes ------------------------------------------------------------------------------

    def _strike(self, act: Act) -> list[str]:
        with self._processes.lock:
            if act.kind in self._processes.kept:
                there = [one for one in self._kept(act) if self._may_end(act, one.name)]
                return [name for one in there for name in self._strike_kept(act, one)]
            if act.kind == "envoy":
                return self._strike_envoys(act)
            if act.kind == "machine":
                machines = [
                    one
                    for one in _picked(self._processes.cast.machines, act)
                    if self._may_end(act, one)
                ]
                return [name for one in machines for name in self._strike_machine(act, one)]
            return [name for one in self._found(act) for name in self._strike_found(act, one)]

    def _may_end(self, act: Act, host: str) -> bool:
        """Who has ended on a full disk may not start there, as is said: it is not killed."""
        return act.verb == "pause" or not self._processes.disks.full(host)

    def _strike_envoys(self, act: Act) -> list[str]:
        """The client loses it: for how long is written down."""
        struck = []
        those = zip(self._processes.cast.gateways, self._processes.envoys(), strict=True)
        for gateway, found in _picked(list(those), act):
            if found is None:
                continue
            strike = Strike(gateway, time.time())
            if act.verb == "kill" and end(found.pid, found.ticks):
                strike.to_s = time.time()
                struck.append(found.name)
            elif act.verb == "pause" and found.pause():

                def resume(found: Found = found, strike: Strike = strike) -> None:
                    found.resume()
                    strike.to_s = time.time()

                self._afterwards(act.lasts_s, f"the pause of {found.name}", resume)
                struck.append(f"{found.name} for {act.lasts_s:g} s")
            else:
                continue
            self._processes.strikes.append(strike)
        return struck

    def _strike_kept(self, act: Act, kept: Kept) -> list[str]:
        found = kept.found
        if found is None or kept.process is None:
            return []
        if act.verb == "pause":
            return self._pause(found, act.lasts_s)
        if act.verb == "kill":
            return [kept.name] if kept.kill(act.lasts_s) else []
        kept.ours, kept.back_s = True, 0.0
        kept.process.send_signal(signal.SIGTERM)
        return [kept.name]

    def _strike_found(self, act: Act, found: Found) -> list[str]:
        if act.verb == "pause":
            return self._pause(found, act.lasts_s)
        return [found.name] if found.kill() else []

    def _strike_machine(self, act: Act, machine: str) -> list[str]:
        """An agent with all that runs there."""
        agent = self._processes.kept["agent"][self._processes.cast.machines.index(machine)]
        struck = self._strike_kept(act, agent)
        traces = self._processes.traces[machine]
        zygote = traces.zygote()
        there = [
            *traces.shims().values(),
            *traces.workers().values(),
            *([zygote] if zygote else []),
        ]
        for found in there:
            struck += self._strike_found(act, found)
        return struck

    def _pause(self, found: Found, lasts_s: float) -> list[str]:
        if not found.pause():
            return []
        self._afterwards(lasts_s, f"the pause of {found.name}", found.resume)
        return [f"{found.name} for {lasts_s:g} s"]

    def _kept(self, act: Act) -> list[Kept]:
        those = self._processes.kept[act.kind]
        if act.who is leading:
            name = self._processes.leading()
            return [one for one in those if one.name == name]
        return _picked(those, act)

    def _found(self, act: Act) -> list[Found]:
        if act.kind == "zygote":
            found = [traces.zygote() for traces in self._processes.traces.values()]
            return [one for one in _picked(found, act) if one is not None]
        of = self._processes.workers() if act.kind == "worker" else self._processes.replicas()
        return _picked([of[key] for key in sorted(of)], act)

    # --- links ----------------------------------------------------------------------------------

    def _cut(self, act: Act) -> list[str]:
        network = self._processes.network
        pairs = [
            (one, other)
            for number, side in enumerate(act.sides)
            for others in act.sides[number + 1 :]
            for one in side
            for other in others
        ]
        if not act.one_way:
            pairs += [(other, one) for one, other in pairs]
        strikes = [Strike(host, time.time()) for host in self._lost_to_the_client(act)]
        self._processes.strikes += strikes
        for pair in pairs:
            network.cut(*pair)

        def heal() -> None:
            for pair in pairs:
                network.heal(*pair)
            for strike in strikes:
                strike.to_s = time.time()

        self._afterwards(act.lasts_s, act.what, heal)
        return [f"for {act.lasts_s:g} s"]

    def _lost_to_the_client(self, act: Act) -> list[str]:
        hosts = {host for side in act.sides for host in side}
        return [host for host in self._processes.cast.gateways if {host, CLIENT} <= hosts]

    def _slow(self, act: Act) -> list[str]:
        (host,) = act.sides[0]
        self._processes.network.slow(host, act.rate)
        self._afterwards(act.lasts_s, act.what, lambda: self._processes.network.quicken(host))
        return [f"for {act.lasts_s:g} s"]

    # --- disks ----------------------------------------------------------------------------------

    def _fill(self, act: Act) -> list[str]:
        (host,) = act.sides[0]
        if not self._processes.may_be_filled(host):
            return []
        self._processes.disks.fill(host)
        self._afterwards(act.lasts_s, act.what, lambda: self._processes.disks.free(host))
        return [f"for {act.lasts_s:g} s"]


def _picked(those: Sequence[T], act: Act) -> list[T]:
    """By its number, from one on, or by lot, or all; nobody, if there are not so many."""
    if act.who is all_:
        return list(those)
    if isinstance(act.who, int):
        return list(those[act.who - 1 : act.who])
    assert act.who is any_
    at = min(int(act.pick * len(those)), len(those) - 1)
    return list(those[at : at + 1])
