"""`holdfast up --systemd` and `--foreground`: a cluster that comes up with its machine."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# What is not passed on to the command in the unit: it is said there in another way, or is no part
# of what is to run.
_NOT_PASSED: Final = ("--systemd", "--foreground", "--json")
_SPECIAL: Final = {"%": "%%", "$": "$$", "\\": "\\\\", '"': '\\"'}

_UNIT: Final = """\
# A Holdfast cluster as a service of this machine. To install it:
#   holdfast up --systemd > holdfast.service
#   sudo cp holdfast.service /etc/systemd/system/
#   sudo systemctl daemon-reload && sudo systemctl enable --now holdfast
# Then end it with `sudo systemctl stop holdfast`.
[Unit]
Description=Holdfast cluster in {described}
Wants=network-online.target
After=network-online.target
# Its own supervisor knows when to give up.
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
Environment="PATH={path}"
ExecStart={holdfast} up{words} --cluster {folder} --foreground
ExecStop={holdfast} down --cluster {folder}
Restart=always
RestartSec=2
# `holdfast down` was said: that is no reason to start it again.
RestartPreventExitStatus={ended}
SuccessExitStatus={ended}
# Whatever the main process has started outlives it: workers and replicas go on while an agent, the
# supervisor or this service is started again. ExecStop ends them.
KillMode=process
# Workers have a notice to reach a step boundary.
TimeoutStopSec=90
LimitNOFILE=1048576

[Install]
WantedBy=multi-user.target
"""


def unit(folder: Path, arguments: Sequence[str]) -> str:
    """A systemd unit that brings up the cluster of this folder, with the holdfast that is in use
    and the options that were given with `up`."""
    from holdfast.supervise.supervisor import ENDED

    words = "".join(f" {_quoted(word)}" for word in _passed(arguments))
    return _UNIT.format(
        described=str(folder).replace("%", "%%"),
        user=getpass.getuser(),
        path=os.environ.get("PATH", os.defpath).replace("%", "%%").replace('"', '\\"'),
        holdfast=" ".join(_quoted(word) for word in program()),
        folder=_quoted(str(folder)),
        words=words,
        ended=ENDED,
    )


def program() -> list[str]:
    """The command line of the holdfast that is in use, with its full path."""
    found = shutil.which(sys.argv[0])
    if found is not None and Path(found).name == "holdfast":
        return [str(Path(found).absolute())]
    return [sys.executable, "-m", "holdfast"]


def stay(folder: Path) -> None:
    """Be the supervisor of the cluster, or wait until it is our turn, in place of this process."""
    from holdfast.supervise.spawn import environment

    command = [sys.executable, "-m", "holdfast.supervise", "--cluster", str(folder), "--wait"]
    sys.stdout.flush()
    os.execve(command[0], command, environment())  # noqa: S606 (it is our own interpreter)


def _passed(arguments: Sequence[str]) -> list[str]:
    """The options of `up` without those that the unit says itself."""
    words, left = [], list(arguments)
    while left:
        word = left.pop(0)
        if word == "up" or word in _NOT_PASSED or word.startswith("--cluster="):
            continue
        if word == "--cluster":
            left = left[1:]
            continue
        words.append(word)
    return words


def _quoted(word: str) -> str:
    """As a unit writes a word of a command line."""
    safe = "".join(_SPECIAL.get(letter, letter) for letter in word)
    return f'"{safe}"' if any(letter in " \t;'\"" for letter in safe) else safe
