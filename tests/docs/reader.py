"""Somebody who follows a page: an empty folder, an empty home, the installed command, no network.

Where the system allows it a reader has a network of his own, with nothing but loopback: the ports
that a page names are free then, whoever else reads at the same time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tests.docs.pages import PROGRAMS, ROOT, SHELL, Block, Command, differs
from tests.integration.clusters import running
from tests.waiting import eventually

INTERRUPTED: Final = 130
BLOCK_S: Final = 600.0
# A coordination server that a program has started stays for its next client: half a minute.
LEFT_S: Final = 90.0
# A network of its own: loopback goes up, and it is there until its stdin ends.
_NETWORK: Final = """
import fcntl, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loopback:
    fcntl.ioctl(loopback, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))
print("up", flush=True)
sys.stdin.read()
"""


class Reader:
    """What he does is in `told`, as he would tell it to somebody who asks what went wrong."""

    def __init__(self, folder: Path, tools: Path) -> None:
        self.home = folder / "home"
        self.folder = folder / "empty"
        self.told: list[str] = []
        self._all = folder
        self._output = folder / "output"
        self._place = folder / "place"
        for place in (self.home, self.folder):
            place.mkdir()
        # Beside it, as a page says: the checkout, for its examples.
        shutil.copytree(ROOT / "examples", folder / "holdfast" / "examples")
        self._cwd = self.folder
        self._environment = {
            "PATH": f"{tools}{os.pathsep}/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._network = _network()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, nothing of it is left."""
        eventually(self._all_killed, "nothing is left")
        if self._network is not None:
            assert self._network.stdin is not None
            self._network.stdin.close()
            self._network.wait()

    def _all_killed(self) -> bool:
        left = running(self._all)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    @property
    def has_a_network(self) -> bool:
        return self._network is not None

    def does(self, block: Block) -> None:
        """What the block says."""
        if block.when:
            eventually(lambda: self._ran(block.when, "")[0] == 0, f"{block}: {block.when}", BLOCK_S)
        if block.file:
            self._writes(block.file, block.text)
        elif block.language in PROGRAMS:
            name = f"block-{block.line}.py"
            self._writes(name, block.text)
            self._gives(block, Command(f"python {name}", ""), block.exit)
        elif block.language in SHELL:
            self._gives(block, Command(block.text, ""), block.exit)
        else:
            for place, command in enumerate(block.commands):
                last = place == len(block.commands) - 1
                self._gives(block, command, block.exit if last else 0)

    def leaves(self) -> list[str]:
        """What still runs when he has come to the end of the page, and should not."""
        with suppress(AssertionError):
            eventually(lambda: not running(self._all), "nothing runs", LEFT_S)
        return list(running(self._all).values())

    # --- private --------------------------------------------------------------------------------

    def _writes(self, name: str, text: str) -> None:
        place = self._cwd / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        self.told.append(f"--- writes {name}")

    def _gives(self, block: Block, command: Command, expected: int) -> None:
        self.told.append(f"--- {block}\n$ {command.words.rstrip()}")
        code, came = self._ran(command.words, command.shown if command.interrupted else "")
        self.told.append(came)
        if command.interrupted:
            expected = INTERRUPTED
        if command.refused:
            assert code in (1, 2), f"{block}: it is not refused, but ends with {code}"
            assert came.splitlines()[0] == command.shown.splitlines()[0], f"{block}: {came}"
        else:
            assert code == expected, f"{block}: ends with {code}, not {expected}:\n{came}"
        assert "Traceback" not in came, f"{block}:\n{came}"
        if block.output:
            missing = differs(command.shown, came)
            assert not missing, f"{block}: did not come: {missing!r}\nwhat came:\n{came}"

    def _ran(self, script: str, until: str) -> tuple[int, str]:
        """By bash, until it ends; or until it has said something, if Ctrl-C is pressed then.

        Into a file: what a command leaves running may keep its output open."""
        told = f"trap 'pwd >{self._place}' EXIT\nset -eo pipefail\n{script}"
        with self._output.open("wb") as out:
            process = subprocess.Popen(
                [*self._entering(), "bash", "-c", told],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env=self._environment,
                start_new_session=True,
            )
            try:
                if until:
                    self._interrupts(process)
                code = process.wait(BLOCK_S)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                self.told.append(self._output.read_text(errors="replace"))
                raise
        with suppress(OSError):
            self._cwd = Path(self._place.read_text().rstrip("\n"))
        return 128 - code if code < 0 else code, self._output.read_text(errors="replace")

    def _interrupts(self, process: subprocess.Popen[bytes]) -> None:
        """As a terminal does it: everybody in the foreground hears of it."""

        def said() -> bool:
            return self._output.stat().st_size > 0 or process.poll() is not None

        eventually(said, "the command says something", BLOCK_S)
        os.killpg(process.pid, signal.SIGINT)

    def _entering(self) -> list[str]:
        if self._network is None:
            return []
        return ["nsenter", "-t", str(self._network.pid), "-n", "--"]


def _network() -> subprocess.Popen[str] | None:
    """A process in a network of its own; None where the system does not allow that."""
    try:
        made = subprocess.Popen(
            ["unshare", "-n", sys.executable, "-c", _NETWORK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={},
        )
    except OSError:
        return None
    assert made.stdout is not None
    if made.stdout.readline() == "up\n":
        return made
    made.kill()
    made.wait()
    return None
