"""A terminal's screen, as far as our commands use one: text, lines, the cursor, erasing. Colours
are left out: a picture is what can be read."""

from __future__ import annotations

import re
from typing import Final

_SEQUENCE: Final = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[()].|\x1b[=>78]")


class Screen:
    """Takes what a program writes; `lines` is all that is or was on the screen, oldest first."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        text = self._rest + text
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            found = _SEQUENCE.match(text, at)
            if found is None:
                break  # the rest of it is to come
            self._obey(found[1] or "", found[2] or "")
            at = found.end()
        self._rest = text[at:]

    @property
    def lines(self) -> list[str]:
        shown = ["".join(row).rstrip() for row in self._rows]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def _put(self, letter: str) -> None:
        if letter == "\n":
            self._down()
        elif letter == "\r":
            self._column = 0
        elif letter == "\b":
            self._column = max(0, self._column - 1)
        elif letter == "\t":
            self._column = min(self._columns - 1, (self._column // 8 + 1) * 8)
        elif letter >= " ":
            if self._column >= self._columns:
                self._down()
                self._column = 0
            row = self._rows[self._row]
            row.extend(" " * (self._column + 1 - len(row)))
            row[self._column] = letter
            self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])

    def _obey(self, given: str, what: str) -> None:
        number = int(given) if given.isdigit() else 0
        row = self._rows[self._row]
        if what == "A":
            self._row = max(0, self._row - max(1, number))
        elif what == "B":
            for _ in range(max(1, number)):
                self._down()
        elif what == "C":
            self._column = min(self._columns - 1, self._column + max(1, number))
        elif what == "D":
            self._column = max(0, self._column - max(1, number))
        elif what == "G":
            self._column = max(1, number) - 1
        elif what == "K" and number == 2:
            row.clear()
        elif what == "K" and number == 0:
            del row[self._column :]
        elif what == "J" and number == 0:
            del row[self._column :]
            del self._rows[self._row + 1 :]
