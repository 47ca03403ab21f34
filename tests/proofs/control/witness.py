"""`examples/counter.py`, and a line for each state that this worker comes to hold.

    python tests/proofs/control/witness.py [the counter's options]

The lines are the worker's own word on what it holds, in which view, and a digest of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.train.members.member import ViewMember

COUNTER = Path(__file__).parents[3] / "examples" / "counter.py"

# On purpose: whoever begins from a checkpoint makes its last step once more.
TWICE = "--a-step-twice" in sys.argv

_join, _renew, _boundary = ViewMember.join, ViewMember.renew, ViewMember.boundary


def say_view(member: ViewMember) -> None:
    view = member.view
    lanes = {str(worker): list(held) for worker, held in view.lanes.items()}
    told = {"number": view.number, "lanes": lanes, "restore_step": view.restore_step}
    print(json.dumps({"view": told}), flush=True)


def say(member: ViewMember, step: int) -> None:
    digest = hashlib.sha256()
    for entry in member._holder.state().entries:
        digest.update(entry.name.encode() + entry.data)
    told = {"view": member.view.number, "step": step, "digest": digest.hexdigest()[:16]}
    print(json.dumps({"holds": {**told, "pid": os.getpid()}}), flush=True)


def join(self: ViewMember) -> None:
    _join(self)
    if TWICE and self.view.restore_step:
        self.step -= 1
    say_view(self)
    say(self, self.step)


def renew(self: ViewMember) -> bool:
    replaced = _renew(self)
    say_view(self)
    say(self, self.step)
    return replaced


def boundary(self: ViewMember, metrics: Mapping[str, float] | None = None) -> bool:
    say(self, self.step + 1)
    changed = _boundary(self, metrics)
    if changed:
        say_view(self)
        say(self, self.step)
    return changed


if __name__ == "__main__":
    sys.argv = [word for word in sys.argv if word != "--a-step-twice"]
    ViewMember.join, ViewMember.renew, ViewMember.boundary = join, renew, boundary  # type: ignore[method-assign]
    runpy.run_path(str(COUNTER), run_name="__main__")
