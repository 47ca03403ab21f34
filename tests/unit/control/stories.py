"""Stories of the planner as text: lines that begin with `> ` happen, the others are decided.

`python -m tests.unit.control.stories FILE...` writes the decisions of a changed planner into the
files; the difference is then read like code.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path

from holdfast.control.decide.facts import Intent
from holdfast.control.decide.schedule import JobPlan, SchedulePlan
from holdfast.control.decide.spec import Mode, Resources
from tests.unit.control.clusters import Cluster

GOLDEN = Path(__file__).parents[2] / "golden" / "schedule"


def replay(text: str) -> str:
    """The story with its decisions as they are made now."""
    cluster = Cluster()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines.append(line)
            lines += _happens(cluster, shlex.split(line[2:]))
        elif not line or line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"


def _happens(cluster: Cluster, words: list[str]) -> list[str]:
    verb, *names = [word for word in words if "=" not in word]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    name = names[0] if names else ""
    if verb == "node":
        cluster.node(name, float(options["cpu"]), gpu=int(options.get("gpu", 0)))
    elif verb == "queue":
        limit = float(options["limit"]) if "limit" in options else None
        cluster.queue(name, float(options["guaranteed"]), limit)
    elif verb == "submit":
        _submit(cluster, name, options)
    elif verb == "wait":
        cluster.now_s += float(name)
    elif verb == "scale":
        cluster.change(name, workers_wanted=int(options["workers"]))
    elif verb == "lose":
        cluster.lose(name)
    elif verb == "pause":
        cluster.change(name, intent=Intent.PAUSE)
    elif verb == "commit":
        cluster.commit(name, 1)
    else:
        {"finish": cluster.finish, "drain": cluster.drain_node}.get(verb, lambda _: None)(name)
    if verb == "gone":
        cluster.gone()
    if verb not in ("plan", "gone"):
        return []
    return _decisions(cluster, cluster.step())


def _submit(cluster: Cluster, name: str, options: dict[str, str]) -> None:
    least, _, most = options["workers"].partition("-")
    cluster.submit(
        name,
        (int(least), int(most or least)),
        priority=int(options.get("priority", 0)),
        queue=options.get("queue", "default"),
        need=Resources(float(options.get("cpu", 1)), gpu=int(options.get("gpu", 0))),
        mode=Mode(options.get("mode", "sync")),
    )


def _decisions(cluster: Cluster, made: SchedulePlan) -> list[str]:
    lines = [line for name in sorted(made.jobs) for line in _about(name, made.of(name))]
    counts = ", ".join(f"{name} {count}" for name, count in sorted(cluster.counts().items()))
    return [*lines, f"= {counts}"]


def _about(name: str, of: JobPlan) -> list[str]:
    lines = []
    for reason in dict.fromkeys(add.reason for add in of.add):
        nodes = Counter(add.node for add in of.add if add.reason == reason)
        places = ", ".join(f"{count} on {node}" for node, count in sorted(nodes.items()))
        lines.append(f"{name} adds {places}: {reason}")
    for reason in dict.fromkeys(leave.reason for leave in of.drain):
        workers = ", ".join(str(leave.worker) for leave in of.drain if leave.reason == reason)
        lines.append(f"{name} drains {workers}: {reason}")
    if of.waits:
        lines.append(f"{name} waits: {of.waits}")
    return lines


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(replay(path.read_text()))
