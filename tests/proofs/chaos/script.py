"""What is done to a cluster, written so that it can be read. Pure.

    chaos = Chaos()
    chaos.kill(agent=2).when(job.step > 40)
    chaos.partition({"a", "b"}, {"c"}).at(12).for_(5)
    chaos.pause(coordinator=leading).at(20).for_(8)
    chaos.slow("a", "256kbit").at(30).for_(10)
    chaos.every(10).kill(replica=any_)
    chaos.kill(envoy=1).when(service.answered > 200)
    chaos.fill("a").at(40).for_(5)

Each line adds an act; nothing happens before somebody plays the script (`hand`). The words of an
act are the line that makes it, so a plan that is printed can be pasted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.proofs.chaos.observed import Condition, Observed, clock


class _One:
    """Somebody who is only known when it happens."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word


any_: Final = _One("any_")  # one of those that are there
all_: Final = _One("all_")  # all of them at once
leading: Final = _One("leading")  # who leads, by what the plane says
Who = int | _One

KINDS: Final = (
    *("server", "coordinator", "controller", "gateway", "writer"),
    *("agent", "machine", "zygote", "worker", "replica"),
    *("envoy", "store"),
)
# How long what was killed stays away, and a pause, a cut, a slow link or a full disk lasts, if
# nobody says.
USUAL_S: Final = {"kill": 0.5, "restart": 0.0, "pause": 5.0, "cut": 5.0, "slow": 10.0, "fill": 5.0}
TROUBLES: Final = ("", "unloadable", "worse")


@dataclass
class Act:
    """One line of a script. `pick` (0 to 1) chooses among those whom `any_` may mean."""

    verb: str
    kind: str = ""
    who: Who = any_
    sides: tuple[tuple[str, ...], ...] = ()
    one_way: bool = False
    rate: str = ""
    trouble: str = ""
    lasts_s: float = 0.0
    pick: float = 0.0
    at_s: float | None = None
    condition: Condition | None = None
    every_s: float | None = None
    _said: bool = field(default=False, repr=False)

    # --- when, and for how long -------------------------------------------------------------------

    def for_(self, seconds: float) -> Act:
        """So long a pause, a cut, a slow link or a full disk lasts, and what was killed is away."""
        self.lasts_s, self._said = seconds, True
        return self

    def at(self, seconds: float) -> Act:
        """Not before so many seconds have passed."""
        self.at_s = seconds
        return self

    def when(self, condition: Condition) -> Act:
        """As soon as this is observed; a second condition must hold as well."""
        self.condition = condition if self.condition is None else self.condition & condition
        return self

    def picking(self, pick: float) -> Act:
        """Which one `any_` is, the same in every run that has the same ones."""
        self.pick = pick
        return self

    def due(self, observed: Observed) -> bool:
        if self.at_s is not None and not (clock.seconds >= self.at_s).holds(observed):
            return False
        return self.condition is None or self.condition.holds(observed)

    # --- its words ----------------------------------------------------------------------------

    @property
    def what(self) -> str:
        """What is done, without when."""
        match self.verb:
            case "cut" if self.one_way or all(len(side) == 1 for side in self.sides):
                (one,), (other,) = self.sides
                more = ", one_way=True" if self.one_way else ""
                return f'cut("{one}", "{other}"{more})'
            case "cut":
                sides = ", ".join("{" + ", ".join(f'"{h}"' for h in s) + "}" for s in self.sides)
                return f"partition({sides})"
            case "fill":
                return f'fill("{self.sides[0][0]}")'
            case "slow":
                return f'slow("{self.sides[0][0]}", "{self.rate}")'
            case "rollout" if self.trouble:
                return f'rollout("{self.trouble}")'
            case "rollout" | "rollback":
                return f"{self.verb}()"
            case _:
                return f"{self.verb}({self.kind}={self.who!r})"

    def __str__(self) -> str:
        words = ["chaos"]
        if self.every_s is not None:
            words.append(f"every({self.every_s:g})")
        words.append(self.what)
        if self._said:
            words.append(f"for_({self.lasts_s:g})")
        if self.at_s is not None:
            words.append(f"at({self.at_s:g})")
        if self.condition is not None:
            words.append(f"when({self.condition})")
        if self.pick:
            words.append(f"picking({self.pick:g})")
        return ".".join(words)


class Verbs:
    """The verbs. `add` takes each act that they make."""

    def __init__(self, add: Callable[[Act], Act]) -> None:
        self._add = add

    def kill(self, **whom: Who) -> Act:
        """SIGKILL. Who is kept by somebody is away for a while and then started again."""
        return self._on("kill", whom)

    def pause(self, **whom: Who) -> Act:
        """SIGSTOP, and SIGCONT later."""
        return self._on("pause", whom)

    def restart(self, **whom: Who) -> Act:
        """SIGTERM, and a new one at once."""
        return self._on("restart", whom)

    def cut(self, one: str, other: str, *, one_way: bool = False) -> Act:
        """Nothing comes from `one` to `other`, nor back, unless `one_way`."""
        sides = ((one,), (other,))
        return self._add(Act("cut", sides=sides, one_way=one_way, lasts_s=USUAL_S["cut"]))

    def partition(self, *sides: Iterable[str]) -> Act:
        """Nothing passes from one side to another. Who is on no side still reaches everybody."""
        kept = tuple(tuple(sorted(side)) for side in sides)
        if len(kept) < 2 or len(set().union(*kept)) != sum(map(len, kept)):
            raise ValueError("a partition has at least two sides, and nobody is on both")
        return self._add(Act("cut", sides=kept, lasts_s=USUAL_S["cut"]))

    def slow(self, host: str, rate: str = "512kbit") -> Act:
        """The link of a host carries so much, in both directions, and queues for a while."""
        return self._add(Act("slow", sides=((host,),), rate=rate, lasts_s=USUAL_S["slow"]))

    def fill(self, host: str) -> Act:
        """The disk of a host has not a byte left; then it is freed again."""
        return self._add(Act("fill", sides=((host,),), lasts_s=USUAL_S["fill"]))

    def rollout(self, trouble: str = "") -> Act:
        """A new version is published and rolled out; `trouble`: one that must be taken back."""
        if trouble not in TROUBLES:
            raise ValueError(f"a version is one of {TROUBLES}")
        return self._add(Act("rollout", trouble=trouble))

    def rollback(self) -> Act:
        """Back to the version before."""
        return self._add(Act("rollback"))

    def _on(self, verb: str, whom: dict[str, Who]) -> Act:
        if len(whom) != 1 or not whom.keys() <= set(KINDS):
            raise ValueError(f"{verb} takes one of {', '.join(KINDS)}")
        ((kind, who),) = whom.items()
        if who is leading and kind != "coordinator":
            raise ValueError(f"nobody knows which {kind} leads")
        return self._add(Act(verb, kind, who, lasts_s=USUAL_S[verb]))


class Chaos(Verbs):
    """A script: acts, each with its own time or condition."""

    def __init__(self) -> None:
        self.acts: list[Act] = []
        super().__init__(self._added)

    def every(self, seconds: float) -> Verbs:
        """Again and again, the first time after so long."""
        if seconds <= 0:
            raise ValueError("again and again needs some time between")

        def add(act: Act) -> Act:
            act.every_s = seconds
            return self._added(act)

        return Verbs(add)

    def _added(self, act: Act) -> Act:
        self.acts.append(act)
        return act

    def __iter__(self) -> Iterator[Act]:
        return iter(self.acts)

    def __str__(self) -> str:
        return "\n".join(map(str, self.acts))


class Playing:
    """Which acts are due: each once, or again and again."""

    def __init__(self, script: Chaos) -> None:
        self._left = list(script)
        self._last_s: dict[int, float] = {}

    def due(self, observed: Observed) -> list[Act]:
        """Those whose time has come. Asked often."""
        now_s = observed["clock.seconds"]
        found = []
        for act in list(self._left):
            if act.every_s is not None:
                last_s = self._last_s.get(id(act), act.at_s or 0.0)
                if now_s < last_s + act.every_s or not act.due(observed):
                    continue
                self._last_s[id(act)] = now_s
                found.append(act)
            elif act.due(observed):
                self._left.remove(act)
                found.append(act)
        return found

    @property
    def left(self) -> int:
        """Acts that have not happened."""
        return sum(act.every_s is None for act in self._left)
