"""Which commands a nursery can run as `python` would: a script or a module, nothing unusual.

Everything else, and whatever is in doubt, is executed: slower, and always right.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.wire import talk

# How much of a script is searched for its imports.
SCRIPT_LOOK_BYTES: Final = 256 * 1024

# What is read when Python, a library of torch or the C library is loaded: too late for a fork.
_READ_AT_START: Final = re.compile(
    r"PYTHON(?!PATH$).*|LD_.*|MALLOC_.*|GLIBC_.*|GCONV_PATH|LOCPATH|LANG|LC_.*"
    r"|OMP_(?!NUM_THREADS$).*|GOMP_.*|KMP_.*|MKL_.*|OPENBLAS_.*|BLIS_.*|VECLIB_.*"
    r"|TORCH.*|PYTORCH.*|NPY_.*|NUMPY_.*|ATEN_.*|DNNL_.*|ONEDNN_.*"
)
_IMPORTS_TORCH: Final = re.compile(rb"^[ \t]*(?:import|from)[ \t]+torch\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """`python SCRIPT ...` or `python -m MODULE ...`. One of `script` and `module` is empty."""

    script: str  # its absolute path
    module: str
    arguments: tuple[str, ...]  # as `sys.argv` has them, the first one included

    def fields(self) -> dict[str, Any]:
        """For launch.json."""
        arguments = list(self.arguments)
        return {"script": self.script, "module": self.module, "arguments": arguments}


def program_of(
    command: Sequence[str], wanted: Mapping[str, str], path: str, cwd: Path
) -> Program | None:
    """The program that `command` runs with this interpreter, if it can be forked.

    `wanted` is what the job wants in its environment, `path` the worker's PATH.
    """
    if wanted.get(talk.WARM_VARIABLE) == "0" or any(map(_READ_AT_START.fullmatch, wanted)):
        return None
    if not _is_ours(command[0], path, cwd):
        return None
    words = list(command[1:])
    if words[:1] == ["-u"]:  # workers are never buffered
        del words[0]
    if not words:
        return None
    if words[0] == "-m" and len(words) > 1 and not words[1].startswith("-"):
        return Program("", words[1], ("-m", *words[2:]))
    script = cwd / words[0]
    if words[0].startswith("-") or not script.is_file():
        return None
    return Program(os.path.normpath(script), "", tuple(words))


def wants_torch(program: Program, wanted: Mapping[str, str], cwd: Path) -> bool:
    """Whether it is worth to wait for a nursery: its own code imports torch, or the job says so."""
    if wanted.get(talk.WARM_VARIABLE) == "1":
        return True
    path = Path(program.script) if program.script else cwd / _file_of(program.module)
    try:
        with path.open("rb") as file:
            return bool(_IMPORTS_TORCH.search(file.read(SCRIPT_LOOK_BYTES)))
    except OSError:
        return False


def _file_of(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


def _is_ours(name: str, path: str, cwd: Path) -> bool:
    """Whether this command is the interpreter that runs the agent, and so the nursery."""
    found = shutil.which(name, path=path) if os.sep not in name else str(cwd / name)
    if found is None:
        return False
    # By its folder too: the interpreters of two virtual environments are one file.
    ours = Path(sys.executable)
    try:
        return Path(found).absolute().parent.samefile(ours.parent) and ours.samefile(found)
    except OSError:
        return False
