"""What the training demo shows: two trainings side by side, and what happens to one of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.cli.run.panel import number, progress_line
from holdfast.cli.run.progress import RunProgress, WorkerCell
from holdfast.control.decide.facts import Phase, WorkerPhase

_DRAW_S: Final = 0.1
_PROGRESS_S: Final = 5.0


class Screen:
    """Draws what it is given; `names` says what processes are called here. Without a terminal it
    prints lines, and now and then the progress."""

    def __init__(self, console: Console, names: Mapping[str, str]) -> None:
        self.console = console
        self.alone: RunProgress | None = None
        self.together: RunProgress | None = None
        self.leads = ""
        self.alive: tuple[str, ...] = ()
        self._names = names
        self._lines: list[Text] = []
        self._began_s = time.monotonic()
        self._drawn_s = self._told_s = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.console.is_terminal:
            self._live.stop()
            self.console.print(self._picture())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    def say(self, text: str, style: str = "") -> None:
        line = Text.assemble((f"{self.seconds:5.1f} s  ", "dim"), (text, style))
        self._lines.append(line)
        if not self.console.is_terminal:
            self.console.print(line, soft_wrap=True)
        self.draw(now=True)

    def draw(self, *, now: bool = False) -> None:
        """Show how it stands; often enough, and not more often."""
        at_s = time.monotonic()
        if self.console.is_terminal:
            if now or at_s >= self._drawn_s + _DRAW_S:
                self._drawn_s = at_s
                self._live.update(self._picture(), refresh=True)
        elif at_s >= self._told_s + _PROGRESS_S and self.together is not None:
            self._told_s = at_s
            shown = replace(
                self.together, metrics={}, reason=self.together.reason.partition("\n")[0]
            )
            self.console.print(f"{self.seconds:5.1f} s  {progress_line(shown)}", soft_wrap=True)

    # --- the picture -----------------------------------------------------------------------------

    def _picture(self) -> Group:
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(no_wrap=True, min_width=24)
        rows.add_column(no_wrap=True)
        rows.add_column(no_wrap=True)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        self._add(rows, "one process, left alone", self.alone, "cyan")
        self._add(rows, "4 workers, being killed", self.together, "green")
        more = Table.grid(padding=(0, 2, 0, 0))
        more.add_column(no_wrap=True, min_width=24, justify="left")
        more.add_column()
        more.add_row(Text("  its workers", "dim"), _workers(self.together))
        more.add_row(Text("  its cluster", "dim"), self._cluster())
        title = Text("Holdfast: the same bits, whoever dies", "bold")
        return Group(title, Text(""), rows, more, Text(""), *self._shown_lines())

    def _shown_lines(self) -> list[Text]:
        """The last ones that there is room for."""
        return self._lines[-max(6, self.console.size.height - 10) :]

    def _add(self, rows: Table, name: str, picture: RunProgress | None, colour: str) -> None:
        if picture is None:
            rows.add_row(name, Text("not yet", "dim"))
            return
        total = picture.total or 1
        done = picture.step >= total
        bar = ProgressBar(
            total=total, completed=picture.step, width=28, complete_style=colour,
            finished_style=colour,
        )  # fmt: skip
        step = Text.assemble(
            (f"{picture.step:4}", "bold"), f" of {picture.total}" if picture.total else ""
        )
        said = Text()
        if "loss" in picture.metrics:
            said.append("loss ", "dim").append(f"{picture.metrics['loss']:.4f}  ")
        if "accuracy" in picture.metrics:
            said.append("accuracy ", "dim").append(f"{picture.metrics['accuracy']:.2%}  ")
        if picture.rate and not done:
            said.append(f"{number(picture.rate)} steps/s", "dim")
        rows.add_row(Text(name, colour), bar, step, said)

    def _cluster(self) -> Text:
        text = Text()
        for name, shown in self._names.items():
            there = name in self.alive
            text.append("● " if there else "✘ ", "green" if there else "red")
            text.append(shown, "" if there else "red strike")
            if there and name == self.leads:
                text.append(" leads", "bold")
            text.append("   ")
        return text


def _workers(picture: RunProgress | None) -> Text:
    if picture is None or not picture.cells:
        return Text("none", "dim")
    text = Text()
    for cell in picture.cells:
        running = cell.phase is WorkerPhase.RUNNING and cell.step is not None
        text.append(f"{cell.worker} ", "bold")
        text.append("▮" * cell.lanes or "▯", "green" if running else "yellow")
        text.append(f" {cell.step if running else cell.phase.value}   ", "dim")
    if picture.committed_step is not None:
        text.append(f"checkpoint {picture.committed_step}", "dim")
    return text


def picture_alone(step: int, total: int, metrics: dict[str, float], lanes: int) -> RunProgress:
    """The run that nobody disturbs, in the same words."""
    cell = WorkerCell(0, "", WorkerPhase.RUNNING, step, lanes)
    return RunProgress(
        "alone", Phase.RUNNING, "", 0.0, time.time(), lanes,
        step=step, total=total, metrics=metrics, cells=(cell,),
    )  # fmt: skip
