"""A proof as a command: a folder of its own, an exit code, and what is said at the end."""

from __future__ import annotations

import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def say(line: str) -> None:
    print(line, flush=True)


def hear_signals() -> None:
    """A polite end from outside is an end, too: what was started is ended, as upon Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


@dataclass(frozen=True)
class Words:
    """What a proof says of itself: `told` its figures, `story` what happened last (if it failed),
    `again` the command that repeats it, `held` what is true if nothing was broken."""

    told: Callable[[], str]
    again: str
    held: str = "every promise held"
    story: Callable[[], str] = str


def conducted(
    play: Callable[[], None],
    folder: Path,
    words: Words,
    violation: type[AssertionError],
    say: Callable[[str], None] = say,
    *,
    keep: bool = False,
) -> int:
    """Play it. 0: all held, and the folder is removed, unless `keep`. 1: something was broken, and
    the folder is kept. 130: interrupted. Other assertions are shown with where they come from."""
    began_s = time.monotonic()
    try:
        play()
    except KeyboardInterrupt:
        say(words.told())
        say(f"interrupted; nothing is left running; data in {folder}")
        return 130
    except AssertionError as broken:
        if not isinstance(broken, violation):
            traceback.print_exc(file=sys.stderr)
        for text in (words.story(), words.told()):
            if text:
                say(text)
        say(f"VIOLATION: {broken}")
        say(f"everything is kept in {folder}")
        say(f"again: {words.again}")
        return 1
    say(words.told())
    say(f"{words.held}, in {time.monotonic() - began_s:.0f} s")
    if keep:
        say(f"everything is kept in {folder}")
    else:
        shutil.rmtree(folder)
    return 0
