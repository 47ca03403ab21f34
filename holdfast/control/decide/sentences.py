"""The planner's reasons, for people. They hold no times: a sentence changes when its cause does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.control.decide import holders
from holdfast.control.decide.claims import Claim
from holdfast.control.decide.rooms import DISK, Room, times

if TYPE_CHECKING:
    from holdfast.control.decide.places import Places

_UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024), ("B", 1))
# Disks are sold, and mostly asked for, in these.
_DISK_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6))
# Names in one sentence; the rest is counted.
_NAMES_MAX = 3


def amount(room: Room) -> str:
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


def waits(claim: Claim, places: Places, place_in_queue: int, has: int) -> str:
    """What a job with fewer workers than it wants waits for."""
    if claim.impossible and claim.job.spec.fixed_ports:
        return _port_in_use(claim, places)
    if claim.impossible:
        return (
            f"the machines that are here, all empty, could not hold its minimum of"
            f" {workers(claim.least)} of {amount(claim.need)} each{_diskless(claim, places)}"
        )
    missing = claim.most - has if has else claim.least
    start = f"waits for {amount(times(claim.need, missing))}"
    if has:
        start = f"has {workers(has)} and may have {claim.most}: {start}"
    end = _diskless(claim, places) + (_nth(claim, place_in_queue) if not has else "")
    if claim.promised:
        names = sorted({name for at in claim.promised for name in places.leaving.get(at, ())})
        part = ""
        if len(claim.promised) < missing:
            part = f"{amount(times(claim.need, len(claim.promised)))} of it "
        return f"{start}: {part}held by workers of {_list(names)} that drain{end}"
    if claim.at_limit:
        return f"{start}: queue {claim.queue} is at its limit{end}"
    if claim.blocked or claim.target > has:
        cause = "what is free is in pieces too small, and nobody's share may be taken for it"
    elif not has and (held := holders.of(claim, places, missing)):
        return f"{start}; {held}{end}"
    else:
        cause = "it is held by jobs that go first or came first"
    return f"{start}: {cause}{end}"


def _diskless(claim: Claim, places: Places) -> str:
    """Which machines are passed over since nobody knows how much disk they have."""
    nodes = places.world.diskless if claim.need[DISK] else ()
    if not nodes:
        return ""
    report, agents = (
        ("report", "their agents are") if len(nodes) > 1 else ("reports", "its agent is")
    )
    return f"; {_list(list(nodes))} {report} no disk ({agents} of an older version), so not there"


def _port_in_use(claim: Claim, places: Places) -> str:
    """Why too few machines can hold a worker whose ports are fixed."""
    spec = claim.job.spec
    fixed = sorted(spec.fixed_ports)
    ports = f"port {fixed[0]}" if len(fixed) == 1 else f"ports {', '.join(map(str, fixed))}"
    others = {
        job
        for used in places.world.ports.values()
        for port, job in used.items()
        if port in spec.fixed_ports and job != claim.name
    }
    held = f", and {_list(sorted(others))} has it" if others else ""
    return (
        f"waits for {workers(claim.least)} on as many machines: {ports} of its job file is fixed,"
        f" so each holds one{held}; `ports: [{', '.join(sorted(spec.ports))}]` lets each choose"
    )


def _nth(claim: Claim, place: int) -> str:
    tens, ones = divmod(place % 100, 10)
    ending = "th" if tens == 1 else {1: "st", 2: "nd", 3: "rd"}.get(ones, "th")
    return f"; it is {place}{ending} in queue {claim.queue}"


def _list(names: list[str]) -> str:
    shown = names[:_NAMES_MAX]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
