"""Which line of the user's own files is being run: what a refusal names."""

from __future__ import annotations

import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import Final

import torch

_OURS: Final = str(Path(__file__).parents[1]) + "/"
_TORCH: Final = str(Path(torch.__file__).parent) + "/"
_LIBRARY: Final = sysconfig.get_path("stdlib") + "/"  # site-packages lie below it, too
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


def calling_line() -> str:
    """`train.py:12` for the innermost line of the user's files, with their path. In a thread of
    torch's own (a GPU's backward pass) it is the line that the main thread is at. Nothing, where
    there is none."""
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    return _innermost(sys._getframe(1)) or _innermost(main)


def is_of_the_script(path: str) -> bool:
    """Whether a file is the user's own: not ours, torch's, installed, or Python's."""
    if path.startswith((_OURS, _TORCH, _LIBRARY, "<")):
        return False
    return not any(each in path for each in _INSTALLED)


def _innermost(frame: FrameType | None) -> str:
    installed = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_OURS, _TORCH, "<")):
            line = f"{path}:{frame.f_lineno}"
            if any(each in path for each in _INSTALLED):
                installed = installed or line
            elif not path.startswith(_LIBRARY):
                return line
        frame = frame.f_back
    return installed
