"""What a forked process does to be as if `python` had just started it.

    become(launch)         another environment, signals, title, random numbers
    status = run(launch)   the script or module; its traceback and its status as Python's own

It is called with no file open but the three standard ones, which Python does not buffer, and with
every signal at its default.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import io
import os
import random
import runpy
import shlex
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Final

_BLAS_SETTERS: Final = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
_THREADS_VARIABLE: Final = "OMP_NUM_THREADS"
# Of /proc/PID/stat, behind the name: where the system reads command line and environment from.
_ARGUMENTS_START, _ENVIRONMENT_START, _ENVIRONMENT_END = 45, 47, 48


def reason_not_to_fork(program: Mapping[str, Any], environment: Mapping[str, str], cwd: str) -> str:
    """Why a fork would not be what `python` does; empty: it would be.

    A module that is imported already comes from elsewhere than it would from these folders.
    """
    if program["module"] in sys.modules and not _is_our_package(program["module"]):
        return f"{program['module']} is imported already"
    loaded = {name for name in sys.modules if "." not in name}
    for folder in _front(program, environment, cwd):
        try:
            names = os.listdir(folder)  # noqa: PTH208 - only the names are wanted
        except OSError:
            continue
        for name in loaded & {one.partition(".")[0] for one in names}:
            if _is_other(name, folder):
                return f"{folder} has a {name} of its own"
    return ""


def _is_our_package(module: str) -> bool:
    """A package of ours: what is run is its `__main__`, which nobody imports."""
    return module.startswith("holdfast.") and hasattr(sys.modules[module], "__path__")


def _front(program: Mapping[str, Any], environment: Mapping[str, str], cwd: str) -> list[str]:
    """What stands before the interpreter's own folders in `sys.path`."""
    first = str(Path(program["script"]).parent) if program["script"] else cwd
    more = environment.get("PYTHONPATH", "")
    return [first, *(os.path.abspath(one or cwd) for one in more.split(os.pathsep) if more)]  # noqa: PTH100


def _is_other(name: str, folder: str) -> bool:
    """Whether `folder` brings a module of this name, and not the one that is loaded."""
    path = Path(folder) / name
    if not (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()):
        return False
    origin = getattr(sys.modules[name], "__file__", None)
    return origin is None or not Path(origin).is_relative_to(folder)


def become(launch: Mapping[str, Any], own_path: Sequence[str]) -> None:
    """Take over what `launch` says; `own_path` is the interpreter's own part of `sys.path`."""
    program, environment = launch["program"], launch["environment"]
    os.environ.clear()
    retitle(launch["command"], environment)
    os.environ.update(environment)
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    sys.argv = list(program["arguments"])
    sys.orig_argv = list(launch["command"])
    sys.path[:] = [*_front(program, environment, launch["cwd"]), *own_path]
    tempfile.tempdir = None
    _be_unlike_others(environment.get(_THREADS_VARIABLE, ""))


def retitle(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show this command line and this environment (as far as there is room) in the process table.

    The environment must be empty: nothing may point to the old one. There the agent finds, by the
    mark, what a worker has left behind.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    first, middle, last = (
        int(fields[at]) for at in (_ARGUMENTS_START, _ENVIRONMENT_START, _ENVIRONMENT_END)
    )
    shown = b"".join(os.fsencode(word) + b"\0" for word in command)
    if len(shown) <= middle - first:
        shown = shown.ljust(middle - first, b"\0")
    else:
        # The byte at the end of the arguments is not zero: then the system shows one line, up to
        # the next zero.
        half = (last - middle) // 2
        shown = os.fsencode(shlex.join(command))[: middle - first + half]
        shown = shown.ljust(middle - first, b" ") + b"\0"
    for name, value in sorted(environment.items(), key=lambda item: not item[0].startswith("HOLD")):
        entry = os.fsencode(f"{name}={value}") + b"\0"
        if len(shown) + len(entry) <= last - first:
            shown += entry
    ctypes.memmove(first, shown.ljust(last - first, b"\0"), last - first)


def _be_unlike_others(threads: str) -> None:
    """Random numbers of its own, and as many threads as its environment says."""
    random.seed()
    count = int(threads) if threads.isdigit() else 0
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "numpy" in sys.modules and count:
        _set_blas_threads(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()
        if count:
            torch.set_num_threads(count)


def _set_blas_threads(count: int) -> None:
    """The library read its environment when it was loaded."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    for path in {line.split()[-1] for line in maps if "openblas" in line and "/" in line}:
        library = ctypes.CDLL(path)
        for name in _BLAS_SETTERS:
            with suppress(AttributeError):
                getattr(library, name)(count)
                break


def run(launch: Mapping[str, Any]) -> int | str | None:
    """Run it as the main program; what to give to `sys.exit`."""
    script, module = launch["program"]["script"], launch["program"]["module"]
    code = None
    if script:
        try:
            with io.open_code(script) as file:
                code = compile(file.read(), script, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            # Python itself says best what is wrong with it.
            os.execvpe(launch["command"][0], launch["command"], launch["environment"])  # noqa: S606
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    try:
        if code is not None:
            loader = SourceFileLoader("__main__", script)
            main.__dict__.update(__file__=script, __cached__=None, __loader__=loader)
            exec(code, main.__dict__)  # noqa: S102 - it is what was asked for
        else:
            runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    except SystemExit as ended:
        return ended.code
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            _end_by_interrupt()
        return 1
    return None


def _end_by_interrupt() -> None:
    """Python ends by the signal itself, so that its parent sees what it was."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
