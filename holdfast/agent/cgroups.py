"""Limits for a worker together with all that it starts: control groups, version 2.

Only where the agent may write there: in a container or a systemd unit whose part of the tree is
delegated to it (`Delegate=yes`). Otherwise `find` says why not; then each worker's shim looks how
much memory its worker holds.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.agent.events import Key
from holdfast.wire.resources import Resources

_NEEDED: Final = frozenset({"memory", "cpu"})


class Found(NamedTuple):
    """The groups, or the reason why there are none."""

    groups: Groups | None
    reason: str


class Groups:
    """The agent's own part of the tree: `agent` for itself, one group for each worker."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def make(self, key: Key, limits: Resources) -> Path:
        """A group for this worker. The whole group dies at its memory limit, not one of it."""
        group = self._home / f"worker-{key}"
        group.mkdir(exist_ok=True)
        if limits.memory_bytes:
            (group / "memory.max").write_text(str(limits.memory_bytes))
            (group / "memory.oom.group").write_text("1")
        if limits.cpu:
            # A share under contention, not a ceiling: an idle core helps whoever wants it.
            weight = max(1, min(10_000, round(100 * limits.cpu)))
            (group / "cpu.weight").write_text(str(weight))
        return group


def remove(group: Path) -> None:
    """Remove a worker's group, which is empty by now."""
    with suppress(FileNotFoundError):
        group.rmdir()


def find(home: Path | None = None) -> Found:
    """The agent's part of the tree, ready for workers. `home`: where to look; None: where it is."""
    try:
        home = home or _own_group()
        if home is None:
            return Found(None, "no version 2 control groups are mounted")
        offered = set((home / "cgroup.controllers").read_text().split())
        if not offered >= _NEEDED:
            return Found(None, f"{home} offers {sorted(offered)}, needed: {sorted(_NEEDED)}")
        # A group that has groups with limits may hold no process itself.
        own = home / "agent"
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(os.getpid()))
        wanted = " ".join(f"+{name}" for name in sorted(_NEEDED))
        (home / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        return Found(None, f"the agent may not make control groups: {error}")
    return Found(Groups(home), f"limits are set in {home}")


def _own_group() -> Path | None:
    """The control group that this process is in."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split()[0] == "cgroup2":
            mounted = Path(fields.split()[4])
            for member in Path("/proc/self/cgroup").read_text().splitlines():
                if member.startswith("0::"):
                    return mounted / member[3:].lstrip("/")
    return None
