"""Why a worker ended, from what is known of its process. Pure.

People first see what their own code said: its traceback. Then the fact: status or signal.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.agent.events import Ending
from holdfast.wire.causes import TRACEBACK, comes_again
from holdfast.wire.reports import Exit, ExitKind
from holdfast.wire.worker_messages import DONE, LEFT, REFUSED

# What people are shown of a worker's end. It is in the journal and in every snapshot.
EXIT_DETAIL_CHARACTERS_MAX: Final = 8_000

# Signals that a process brings upon itself: an abort, a bad address, a bad instruction. Everything
# else was sent by somebody.
_OWN_FAULTS: Final = {
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    11: "SIGSEGV",
    31: "SIGSYS",
}
_NAMES: Final = {**_OWN_FAULTS, 1: "SIGHUP", 2: "SIGINT", 9: "SIGKILL", 15: "SIGTERM"}
# What an agent or a shim sends to end a worker.
_OURS: Final = frozenset({9, 15})
_WORDS: Final = {DONE: ExitKind.DONE, LEFT: ExitKind.LEFT}
_TAIL_LINES: Final = 20
_MORE: Final = (
    "raise `memory` under `resources` in its job file and submit that again"
    " (holdfast submit JOB.YAML; of a run: holdfast run --memory)"
)
_MORE_FOR_A_REPLICA: Final = (
    "serve it with more: holdfast unserve SERVICE, then holdfast serve MODEL --memory"
)
_MORE_DISK: Final = (
    "raise resources.disk in its job file and submit that again"
    " (holdfast submit JOB.YAML; of a run: holdfast run --disk)"
)
# What Python, C++, the system and torch say when memory is refused.
_NO_MEMORY: Final = re.compile(
    r"^(?:\w+\.)*(?:MemoryError|_ArrayMemoryError|OutOfMemoryError)\b"
    r"|std::bad_alloc|Cannot allocate memory|can't allocate memory|out of memory",
    re.MULTILINE,
)


def classify(
    ending: Ending,
    *,
    stopping: bool,
    hung: bool,
    introduced: bool,
    frozen: bool = False,
    serves: bool = False,
    stepped: bool = True,
    unwell: str = "",
    disk_bytes: tuple[int, int] = (0, 0),
) -> Exit:
    """The reason of an end.

    `stopping`: it was asked to stop. `hung`: its agent killed it for want of progress. `frozen`:
    its agent killed it since somebody had paused it. `unwell`: its agent ended it, for what its
    `live` probe said. `disk_bytes`: what its folders held when its agent ended it for that (0: it
    did not), and what they might hold.
    `introduced`: it had connected to its agent; a program that never did and ends with status 0
    is an ordinary program that has done its work. `serves`: it was a replica of a service.
    `stepped`: it had made a step, so its code is whole.
    """
    fact, own = _fact(ending, serves=serves), own_words(ending.stderr_tail)
    # Its word counts when it ended well, and also when our own signal came while it was ending:
    # a Python program that is being taken down has no handlers any more.
    ours = ending.signal in _OURS and (stopping or ending.abandoned)
    if ending.word in _WORDS and (ending.code == 0 or ours):
        return Exit(_WORDS[ending.word], fact)
    if hung:
        return Exit(ExitKind.HUNG, _story("it made no progress, and was killed", own))
    if unwell:
        return Exit(ExitKind.HUNG, _story(f"{unwell}; so it was ended", ""))
    if disk_bytes[0]:
        return Exit(ExitKind.DISK, _over_disk(*disk_bytes))
    if frozen:
        return Exit(ExitKind.SIGNAL, f"somebody had paused it (SIGSTOP), so it was killed; {fact}")
    if stopping:
        return Exit(ExitKind.STOPPED, _story(f"it was asked to stop; {fact}", ""))
    if ending.abandoned:
        return Exit(ExitKind.STOPPED, "its agent did not come back, so it was stopped")
    if ending.fault:
        kind = ExitKind.REFUSED if ending.final else ExitKind.ERROR
        return Exit(kind, _story(ending.fault, ""))
    if not ending.seen:
        return Exit(ExitKind.LOST, "its process was gone when its agent came back")
    if ending.over_memory:
        return Exit(ExitKind.MEMORY, fact)  # what it wrote last has nothing to do with it
    if ending.signal is not None and ending.signal not in _OWN_FAULTS:
        hint = "; the machine ran out of memory meanwhile" if ending.machine_short else ""
        return Exit(ExitKind.SIGNAL, _story(f"{fact}, which somebody else sent{hint}", own))
    if ending.code == 0:
        if not introduced:
            return Exit(ExitKind.DONE, fact)
        return Exit(ExitKind.ERROR, _story("it ended before the job was done", own))
    if ending.word == REFUSED:
        return Exit(ExitKind.REFUSED, _story(fact, own))
    if _NO_MEMORY.search(_last_lines(own, 3)):
        return Exit(ExitKind.MEMORY, _story(fact, own))
    final = not stepped and not serves and comes_again(own)
    return Exit(ExitKind.REFUSED if final else ExitKind.ERROR, _story(fact, own))


def own_words(tail: str) -> str:
    """The last traceback in `tail`, with those that led to it; otherwise its last lines."""
    lines = tail.splitlines()
    starts = [at for at, line in enumerate(lines) if line.strip() == TRACEBACK]
    if not starts:
        return "\n".join(lines[-_TAIL_LINES:]).strip()
    first = starts[-1]
    for start in reversed(starts[:-1]):
        # "During handling of ..." or "The above exception ..." ties a traceback to the next one.
        between = [line for line in lines[start:first] if line.strip()]
        if not between[-1].endswith(":") or "exception" not in between[-1]:
            break
        first = start
    return "\n".join(lines[first:]).strip()


def _fact(ending: Ending, *, serves: bool) -> str:
    if ending.over_memory:
        return _over_memory(ending, serves=serves)
    if ending.signal is not None:
        name = _NAMES.get(ending.signal, f"signal {ending.signal}")
        return f"it was ended by {name}"
    if ending.code is not None:
        return f"it ended with status {ending.code}"
    return ending.fault or "its end was not seen"


def _over_memory(ending: Ending, *, serves: bool) -> str:
    """What it had, what it might have, and what to change; in the unit of what was asked for."""
    most = ending.memory_bytes_max
    unit, name = (10**6, "MB") if most % 10**6 == 0 else (1 << 20, "MiB")
    sizes = f"it had {ending.memory_bytes / unit:.1f} {name}, the limit is {most / unit:g} {name}"
    return f"it met its memory limit: {sizes}; {_MORE_FOR_A_REPLICA if serves else _MORE}"


def _over_disk(held_bytes: int, bytes_max: int) -> str:
    """The same of its disk."""
    sizes = [(10**9, "GB"), (10**6, "MB")] if bytes_max % 10**6 == 0 else [(1 << 30, "GiB")]
    unit, name = next((one for one in sizes if bytes_max >= one[0]), (1 << 20, "MiB"))
    held = f"used {held_bytes / unit:.4g} {name} of disk, {bytes_max / unit:g} {name} allowed"
    return f"it met its disk limit: {held}: {_MORE_DISK}"


def _story(fact: str, own: str) -> str:
    """The user's own words first; the middle goes when it is too long."""
    space = EXIT_DETAIL_CHARACTERS_MAX - len(fact) - 16
    if len(own) > space:
        head = own[: space // 4]
        own = f"{head}\n[...]\n{own[-(space - len(head)) :]}"
    return f"{own}\n{fact}" if own else fact[:EXIT_DETAIL_CHARACTERS_MAX]


def _last_lines(text: str, count: int) -> str:
    return "\n".join(text.splitlines()[-count:])
