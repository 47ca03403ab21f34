"""The pages, and their blocks. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)
SHELL: Final = ("sh", "bash")
PROGRAMS: Final = ("py", "python")
# Nothing that anybody runs.
SHOWN: Final = ("text", "diff")
_FENCE: Final = re.compile(
    r"^(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=fence)$", re.M | re.S
)
_NAMED: Final = re.compile(r"(?:#|//) (?P<name>[\w./-]+\.\w+)")
_KEYS: Final = ("exit", "output", "skip", "when")


class BadFence(ValueError):
    """A block that does not say what it is."""


@dataclass(frozen=True)
class Command:
    """One command at a prompt, and what the page shows of its output."""

    words: str
    shown: str

    @property
    def interrupted(self) -> bool:
        return "^C" in self.shown.splitlines()

    @property
    def refused(self) -> bool:
        return self.shown.startswith("error ")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    exit: int = 0
    output: bool = False
    skip: str = ""
    when: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The file that it is to be written to, if its first line says so."""
        named = _NAMED.fullmatch(self.text.partition("\n")[0])
        return named["name"] if named and self.language not in (*SHELL, "console") else ""

    @property
    def commands(self) -> list[Command]:
        """Of a console: what stands behind each prompt; `> ` continues a command."""
        found = []
        for part in re.split(r"^\$ ", self.text, flags=re.M)[1:]:
            first, *rest = part.splitlines()
            words = [first]
            while rest and rest[0].startswith("> "):
                words.append(rest.pop(0)[2:])
            found.append(Command("\n".join(words), "\n".join(rest)))
        return found

    @property
    def runs(self) -> bool:
        """Whether it has to do with what a reader does."""
        return self.language not in SHOWN and not self.skip


def blocks(path: Path) -> list[Block]:
    """All of a page's. `BadFence`: one of them says nothing, or something unknown."""
    text = path.read_text()
    page = path.relative_to(ROOT).as_posix()
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        found.append(_block(page, line, match["info"], match["text"]))
    return found


def _block(page: str, line: int, info: str, text: str) -> Block:
    language, *rest = shlex.split(info) or [""]
    where = f"{page}:{line}"
    if not language:
        raise BadFence(
            f"{where}: the fence does not say what this is: sh, console, python, text, ..."
        )
    given: dict[str, str] = {}
    for word in rest:
        key, _, value = word.partition("=")
        if key not in _KEYS or (key in ("skip", "when") and not value):
            raise BadFence(
                f"{where}: {word!r} is none of {', '.join(_KEYS)} (tests/docs/__init__.py)"
            )
        given[key] = value
    block = Block(
        page,
        line,
        language,
        text,
        exit=int(given.get("exit") or 0),
        output="output" in given,
        skip=given.get("skip", ""),
        when=given.get("when", ""),
    )
    _check(block)
    return block


def _check(block: Block) -> None:
    """`BadFence` if nobody could say what a reader does with it."""
    if block.language == "console":
        if not block.commands or not block.text.startswith("$ "):
            raise BadFence(f"{block}: a console begins with a prompt: $ holdfast ...")
    elif block.language in SHOWN:
        given = re.search(r"^(\$ |holdfast |python |pip |curl |make )", block.text, re.M)
        if given:
            raise BadFence(
                f"{block}: {given[0].strip()!r} is a command, in a block that nobody runs"
            )
    elif block.language not in (*SHELL, *PROGRAMS) and not block.file and not block.skip:
        raise BadFence(f"{block}: its first line does not name the file that it is: # name.ext")


def differs(shown: str, came: str) -> str:
    """The first line of `shown` that did not come, in its order; nothing if all did. Words with a
    digit in them (times, ids, numbers), and what `…` stands for, may be any."""
    left = came.splitlines()
    for line in shown.splitlines():
        pattern = re.compile(_pattern(line))
        if not line.strip() or line.strip() in ("…", "..."):
            continue
        place = next((at for at, one in enumerate(left) if pattern.fullmatch(one.strip())), None)
        if place is None:
            return line
        left = left[place + 1 :]
    return ""


def _pattern(line: str) -> str:
    words = []
    for word in line.split():
        if any(letter.isdigit() for letter in word):
            words.append(r"\S+")
        else:
            words.append(".*".join(re.escape(part) for part in re.split("…|\\.\\.\\.", word)))
    return r"\s+".join(words)
