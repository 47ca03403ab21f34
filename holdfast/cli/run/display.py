"""How a run is shown: a panel on a terminal, plain lines in a pipe, JSON for a program.

Each display gets the same: notes, events, lines of workers, progress, and the summary.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any, Final, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.run import panel
from holdfast.cli.run.events import RunEvent
from holdfast.cli.run.progress import RunProgress
from holdfast.cli.run.summary import Summary, summary_lines
from holdfast.cli.run.worker_output import OutputLine
from holdfast.client.texts import clock

# Where there is no terminal, a line of progress so often.
RUN_PROGRESS_S: Final = 5.0

HINT: Final = "Ctrl-C saves a checkpoint and stops"
_EVENTS_SHOWN: Final = 6
_NAME_INDENT: Final = 13  # where values of the end begin
_DRAW_S: Final = 0.12
_WORKER_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")


class Display(Protocol):
    """How a run is shown."""

    def note(self, text: str) -> None:
        """A sentence of the run itself."""

    def hint(self, text: str) -> None:
        """What Ctrl-C does now; may be said again and again."""

    def events(self, events: Sequence[RunEvent]) -> None: ...

    def lines(self, lines: Sequence[OutputLine]) -> None: ...

    def show_progress(self, progress: RunProgress) -> None:
        """How it stands now; called often."""

    def ended(self, summary: Summary) -> None: ...

    def close(self) -> None:
        """Leave the terminal as it was. May be called twice."""


class PanelDisplay:
    """A panel at the bottom of the terminal; everything else flows above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._events: deque[RunEvent] = deque(maxlen=_EVENTS_SHOWN)
        self._drawn_s = 0.0
        self._hint = HINT
        self._details = _Details()

    def note(self, text: str) -> None:
        self._console.print(Text.assemble(("· ", "dim"), text), soft_wrap=False)

    def hint(self, text: str) -> None:
        self._hint = text

    def events(self, events: Sequence[RunEvent]) -> None:
        self._events.extend(events)
        for event in events:
            detail = self._details.fresh(event)
            if detail:
                for row in output.wrapped(event.text, self._console.width):
                    self._console.print(Text(row, "bold yellow"), soft_wrap=True)
                self._console.print(Text(detail), soft_wrap=True)

    def lines(self, lines: Sequence[OutputLine]) -> None:
        if not lines:
            return
        text = Text()
        for at, line in enumerate(lines):
            text.append("\n" if at else "")
            text.append(f"{line.worker} ", _WORKER_COLOURS[line.worker % len(_WORKER_COLOURS)])
            text.append("│ ", "dim")
            text.append_text(Text.from_ansi(line.text) if line.text else Text())
        self._console.print(text, soft_wrap=True)

    def show_progress(self, progress: RunProgress) -> None:
        now_s = time.monotonic()
        if self._live is not None and now_s < self._drawn_s + _DRAW_S:
            return
        self._drawn_s = now_s
        size = self._console.size
        shown = panel.panel(
            progress, self._events, width=size.width, height=size.height, hint=self._hint
        )
        if self._live is None:
            self._live = Live(
                shown,
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
        else:
            self._live.update(shown, refresh=True)

    def ended(self, summary: Summary) -> None:
        self.close()
        colour = "green" if summary.exit_code == 0 else "red" if summary.exit_code == 1 else "blue"
        mark = "✔" if summary.exit_code == 0 else "✘" if summary.exit_code == 1 else "❚❚"
        first, *rest = summary_lines(summary)
        self._console.print(Text.assemble((f"{mark} ", colour), (first, "bold")), soft_wrap=False)
        for line in rest:
            name, _, value = line.partition("  ")
            first, *more = output.wrapped(value.strip(), self._console.width - _NAME_INDENT)
            self._console.print(
                Text.assemble("  ", (f"{name:<{_NAME_INDENT - 2}}", "dim"), first), soft_wrap=True
            )
            for row in more:
                self._console.print(Text(f"{'':{_NAME_INDENT}}{row}"), soft_wrap=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class PlainDisplay:
    """One line for each thing, and a line of progress every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress_s = time.monotonic()
        self._last = ""
        self._hinted = ""
        self._details = _Details()

    def note(self, text: str) -> None:
        self._write(text)

    def hint(self, text: str) -> None:
        kind = text.partition(":")[0]
        if kind != self._hinted:  # a countdown is told once
            self._hinted = kind
            self._write(text)

    def events(self, events: Sequence[RunEvent]) -> None:
        for event in events:
            self._write(f"{clock(event.at_s)} {event.text}")
            for line in self._details.fresh(event).splitlines():
                self._write(f"  {line}")

    def lines(self, lines: Sequence[OutputLine]) -> None:
        for line in lines:
            self._write(f"[{line.worker}] {line.text}")

    def show_progress(self, progress: RunProgress) -> None:
        now_s = time.monotonic()
        if now_s < self._progress_s + RUN_PROGRESS_S:
            return
        self._progress_s = now_s
        line = panel.progress_line(progress)
        if line != self._last:
            self._last = line
            self._write(f"{clock(progress.at_s)} {line}")

    def ended(self, summary: Summary) -> None:
        first, *rest = summary_lines(summary)
        self._write(first)
        for line in rest:
            self._write(f"  {line}")

    def close(self) -> None:
        self._stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class JsonDisplay:
    """One JSON object a line, each with the time and what it is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: RunProgress | None = None
        self._hinted = ""
        self._progress_s = 0.0

    def note(self, text: str) -> None:
        self._say("note", text=text)

    def hint(self, text: str) -> None:
        if text != self._hinted:
            self._hinted = text
            self._say("note", text=text)

    def events(self, events: Sequence[RunEvent]) -> None:
        for event in events:
            self._say("event", **_plain(asdict(event)))

    def lines(self, lines: Sequence[OutputLine]) -> None:
        for line in lines:
            self._say("output", **asdict(line))

    def show_progress(self, progress: RunProgress) -> None:
        before, now_s = self._shown, time.monotonic()
        same = (
            before is not None and before.step == progress.step and before.phase is progress.phase
        )
        if same or (
            before is not None and before.phase is progress.phase and now_s < self._progress_s + 1.0
        ):
            return
        self._shown, self._progress_s = progress, now_s
        self._say("progress", **_plain(asdict(progress)))

    def ended(self, summary: Summary) -> None:
        self._say("ended", **_plain(asdict(summary)), cause=summary.cause)

    def close(self) -> None:
        self._stream.flush()

    def _say(self, what: str, **fields: Any) -> None:
        at = fields.pop("at_s", None) or time.time()
        document = {"what": what, "at_s": round(at, 3), **fields}
        self._stream.write(json.dumps(document, ensure_ascii=False) + "\n")
        self._stream.flush()


class _Details:
    """Shows each traceback once, however many workers end by it."""

    def __init__(self) -> None:
        self._last = ""

    def fresh(self, event: RunEvent) -> str:
        """What is to be shown below this event's line."""
        if not event.detail or event.detail == self._last:
            return ""
        self._last = event.detail
        return event.detail


def display_for(*, as_json: bool) -> PanelDisplay | PlainDisplay | JsonDisplay:
    """The display that fits where stdout goes."""
    if as_json:
        return JsonDisplay(sys.stdout)
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return PanelDisplay(console)
    return PlainDisplay(sys.stdout)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    return value
