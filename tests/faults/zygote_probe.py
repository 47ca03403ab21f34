"""A program that says what it sees of itself, or ends in some way: to be run cold and warm.

python zygote_probe.py self        what Python and the system have given it
python zygote_probe.py END ...     one of `ENDS`
"""

from __future__ import annotations

import atexit
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


def seen() -> dict[str, Any]:
    """What must be the same, however it was started."""
    main = sys.modules["__main__"]
    names = ("__name__", "__file__", "__package__", "__cached__", "__doc__")
    numbers = sorted(set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP})
    ours = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {
        "main": {name: str(getattr(main, name, "-")) for name in names},
        "globals": sorted(name for name in vars(main) if name.startswith("__")),
        "loader": type(main.__loader__).__name__,
        "argv": sys.argv,
        "original": sys.orig_argv,
        "path": sys.path,
        "flags": str(sys.flags),
        "cwd": str(Path.cwd()).rpartition("/")[2],
        "temporary": tempfile.gettempdir().rpartition("/")[2],
        "environment": {name: text for name, text in ours.items() if name != "TMPDIR"},
        "handlers": {int(number): str(signal.getsignal(number)) for number in numbers},
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "limits": {str(one): resource.getrlimit(one) for one in range(16)},
        "affinity": sorted(os.sched_getaffinity(0)),
        "leads": [os.getpid() == os.getsid(0), os.getpid() == os.getpgrp()],
        "umask": os.umask(0o22),
        "files": sorted(path.name for path in Path("/proc/self/fd").iterdir()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "streams": [_stream(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "main thread": threading.current_thread() is threading.main_thread(),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    }


def _stream(stream: Any) -> list[str]:
    facts = (stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering)
    return [*map(str, facts), str(stream.write_through), type(stream.buffer).__name__]


def chance() -> list[object]:
    """What must be different for everybody."""
    torch = sys.modules.get("torch")
    return [random.random(), torch.initial_seed() if torch else None, os.urandom(4).hex()]


def linger() -> None:
    """Python waits for a thread that is not a daemon, then runs what was registered."""
    atexit.register(print, "at exit")

    def late() -> None:
        time.sleep(0.2)  # pause: longer than the main thread lives
        print("thread")

    threading.Thread(target=late).start()
    sys.stdout.write("no newline")


def fail_in_thread() -> None:
    thread = threading.Thread(target=lambda: 1 / 0, name="mine")
    thread.start()
    thread.join()


def hook() -> None:
    sys.excepthook = lambda kind, *_: print(f"hooked {kind.__name__}")
    raise ValueError("hooked")


def chain() -> None:
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second") from error


def interrupt() -> None:
    atexit.register(print, "at exit")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)  # pause: the signal comes here


def pipe() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")


ENDS = {
    "nothing": lambda: None,
    "three": lambda: sys.exit(3),
    "words": lambda: sys.exit("these words"),
    "none": lambda: sys.exit(None),
    "large": lambda: sys.exit(300),
    "at once": lambda: os._exit(5),
    "chain": chain,
    "hook": hook,
    "linger": linger,
    "thread": fail_in_thread,
    "interrupt": interrupt,
    "pipe": pipe,
    "abort": os.abort,
}


if __name__ == "__main__":
    if sys.argv[1] == "self":
        print(json.dumps(seen()))
    elif sys.argv[1] == "chance":
        print(json.dumps(chance()))
    else:
        ENDS[sys.argv[1]]()
