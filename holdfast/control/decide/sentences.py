"""The planner's reasons, for people. They hold no times: a sentence changes when its cause does."""

from __future__ import annotations

from holdfast.control.decide.capacity import Amounts
from holdfast.control.decide.claims import Claim

_UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024), ("B", 1))
# Disks are sold, and mostly asked for, in these.
_DISK_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6))


def amount(room: Amounts) -> str:
    """`4 cpu, 8 GiB memory, 1 gpu and 20 GB disk`."""
    cpu, memory, gpu, disk = room
    parts = [f"{cpu / 1000:g} cpu"] if cpu else []
    if memory:
        parts.append(f"{_size(memory, _UNITS)} memory")
    if gpu:
        parts.append(f"{gpu} gpu")
    if disk:
        parts.append(f"{_size(disk, _UNITS if disk % 10**6 else _DISK_UNITS)} disk")
    if not parts:
        return "no room"
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _size(count: int, units: tuple[tuple[str, int], ...]) -> str:
    unit, size = next(unit for unit in units if count >= unit[1])
    return f"{count / size:.4g} {unit}"


def workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def adds(claim: Claim) -> str:
    """Why a job gets workers."""
    before = claim.staying + len(claim.moving)
    after = claim.staying + len(claim.adds)
    if not before:
        return f"starts with {workers(after)}: room for its minimum of {claim.least} is free"
    if claim.moving:
        nodes = ", ".join(sorted({placement.node for placement in claim.moving}))
        return f"{workers(len(claim.adds))} in place of those that must leave {nodes}"
    if claim.surge and after > claim.most:
        return "one more while it is updated: it is ready before an old one leaves"
    if claim.staying < claim.least:
        return f"back from {claim.staying} to {workers(after)}: its minimum is {claim.least}"
    return f"grows from {claim.staying} to {workers(after)}: there is free room"


def scaled(claim: Claim) -> str:
    return f"it is to have {workers(claim.most)} at most, and has {len(claim.held)}"


def over_limit(claim: Claim) -> str:
    return f"queue {claim.queue} is at its limit, and others in it go first"


def moves(node: str, *, too_small: bool) -> str:
    cause = "has become too small for what it holds" if too_small else "is drained"
    return f"{node} {cause}, and this worker must leave it"


def moves_on(claim: Claim) -> str:
    nodes = ", ".join(sorted(set(claim.adds)))
    return f"its room is needed by others, and there is room for its minimum on {nodes}: it moves"


def no_replacement(claim: Claim) -> str:
    nodes = ", ".join(sorted({placement.node for placement in claim.moving}))
    return (
        f"its workers must leave {nodes}, and there is no room elsewhere for its minimum of"
        f" {claim.least}: it stops whole"
    )


def gives_way(victim: Claim, claim: Claim, *, whole: bool) -> str:
    """Why workers of `victim` are drained for `claim`."""
    if claim.owned and claim.queue != victim.queue:
        cause = f"queue {victim.queue} has borrowed what queue {claim.queue} is guaranteed"
        cause += f", and {claim.name} needs it"
    elif claim.hold > victim.hold or (not whole and claim.rank > victim.rank):
        cause = f"{claim.name} goes first ({_rank(claim)}; {victim.name}: {_rank(victim)})"
    elif claim.rank == victim.rank:
        cause = f"{claim.name} has the same rank, and gets its fair share"
    else:
        cause = f"{victim.name} has no share here, and {claim.name} has"
    if whole:
        return f"stops whole: {cause}, and workers above the minimums were not enough"
    return f"shrinks, its minimum is {workers(victim.least)}: {cause}"


def _rank(claim: Claim) -> str:
    priority = claim.job.spec.priority
    if claim.rank == priority:
        return f"priority {priority}"
    return f"priority {priority}, by waiting {claim.rank}"
