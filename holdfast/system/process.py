"""How a process of ours that is not a command begins and ends: light imports, an exit code.

sys.exit(process.main(serve))     # in `__main__`; `serve` imports what it needs
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from holdfast.system import tasks
from holdfast.wire.errors import HoldfastError

# Files of one process of ours: twenty thousand clients of a server or a gateway, what it opens
# itself for them, and some. Not all that a system may allow: there are programs that go over every
# possible file when they start.
FILES_WANTED: Final = 65_536

# In the environment with which a part of a cluster is started, before it can write down who it is:
# the folder that it is started over. A part does not pass it on to what it starts.
PART_VARIABLE: Final = "HOLDFAST_PART_OF"
# What our processes write is their owner's alone, and so is what the workers write whom they start:
# a job whose files are for others says so itself.
PRIVATE_MASK: Final = 0o077


def main(serve: Callable[[Sequence[str]], int]) -> int:
    """Call `serve` with the process's arguments; what it says in the end, or an error's own code.

    Nothing that logs may be imported before this.
    """
    # For tracebacks that we never print, structlog would load rich: five megabytes in every such
    # process. What is None here cannot be imported.
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rich", None)
    # At once: what lives long may have no file left to read it from when it has a line to write.
    import structlog  # noqa: F401, PLC0415

    from holdfast.system import logs  # noqa: PLC0415

    logs.set_up()
    raise_file_limit()
    os.umask(PRIVATE_MASK)
    # A process of ours that has lost a part of itself ends as if it were told to, and says why.
    with tasks.main_ended_by(lambda: os.kill(os.getpid(), signal.SIGTERM)):
        try:
            code, error = serve(sys.argv[1:]), tasks.death()
        except HoldfastError as raised:
            error = tasks.death() or raised
    if error is None:
        return code
    sys.stderr.write(f"{error}\n")
    return error.exit_code


def on_termination(end: Callable[[], None]) -> None:
    """Call `end` at each SIGTERM and SIGINT, on a thread of its own.

    A handler interrupts the main thread wherever that is, also in another handler: one that took a
    lock (as `Event.set` does) could wait for itself for ever. This one writes a byte.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def note(*_: object) -> None:
        with suppress(BlockingIOError):  # as many as a pipe holds are enough
            os.write(writer, b".")

    def wait() -> None:
        while os.read(reader, 1):
            end()

    tasks.start_thread(
        wait, "signals", lasts="a process can be told to end for as long as it lives"
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)


def raise_file_limit() -> None:
    """Have as many files as we may, up to `FILES_WANTED`: each peer is one. Systems often begin
    with 1,024, which a process may raise by itself. What it starts inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
