"""How a run looks on a terminal: one panel that is drawn again in its place. Pure: values in, what
rich draws out. `run_voices` decides when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.cli.output import phase_text
from holdfast.cli.run.events import RunEvent
from holdfast.cli.run.progress import RunProgress, WorkerCell
from holdfast.client.texts import ago, clock, many, span
from holdfast.control.decide.facts import Phase, WorkerPhase

# A worker's lanes as blocks; more are written as a number.
_BLOCKS_MAX: Final = 8
_METRICS_MAX: Final = 6


def panel(
    progress: RunProgress, events: Sequence[RunEvent], *, width: int, height: int, hint: str
) -> RenderableType:
    """The whole view, for a terminal of that size."""
    title = (
        Text(f" {progress.name} ", "bold").append_text(phase_text(progress.phase.value)).append(" ")
    )
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="dim", no_wrap=True, min_width=10)
    rows.add_column(ratio=1)
    for name, shown in (
        ("step", _progress(progress, width)),
        ("metrics", _metrics(progress)),
        ("workers", _workers(progress.cells)),
        ("slow", _slow(progress)),
        ("checkpoint", _checkpoint(progress)),
        ("", _reason(progress)),
    ):
        if shown is not None:
            rows.add_row(name, shown)
    # The frame, an empty line, and the line below it where the cursor waits.
    rows_left = max(0, height - rows.row_count - _lines_of(progress.cells, width) - 4)
    recent = list(events)[-min(rows_left, len(events)) :] if rows_left else []
    body: list[RenderableType] = [rows]
    if recent:
        body += [Text(""), *(event_line(event) for event in recent)]
    return Panel(
        Group(*body),
        title=title,
        title_align="left",
        subtitle=Text(f" {hint} ", "dim") if hint else None,
        subtitle_align="right",
        border_style="red" if progress.phase is Phase.FAILED else "dim",
        padding=(0, 1),
        # Not to the edge: the terminal writes `^C` behind it, which must not begin a new line.
        width=max(20, min(width - 4, 120)),
    )


def event_line(event: RunEvent) -> Text:
    """`12:01:03  worker 3 was killed (SIGKILL)`, cut to one line."""
    style = "red" if event.loud else "yellow" if event.loss else ""
    if event.kind == "CommitCheckpoint":
        style = "green"
    text = Text.assemble((clock(event.at_s), "dim"), "  ", (event.text, style))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _progress(progress: RunProgress, width: int) -> RenderableType:
    parts = Table.grid(padding=(0, 2, 0, 0))
    cells: list[RenderableType] = []
    if progress.total is None:
        cells.append(Text(f"{progress.step:,}", "bold"))
    else:
        cells.append(Text.assemble((f"{progress.step:,}", "bold"), f" of {progress.total:,}"))
        bar_width = max(10, min(40, width - 70))
        cells.append(
            ProgressBar(
                total=max(progress.total, 1),
                completed=min(progress.step, progress.total),
                width=bar_width,
                complete_style="green",
                finished_style="green",
            )
        )
    if progress.rate is not None:
        cells.append(Text(f"{number(progress.rate)} steps/s"))
    if progress.samples_rate is not None:
        cells.append(Text(f"{number(progress.samples_rate)} samples/s"))
    if progress.left_s is not None and progress.phase is Phase.RUNNING:
        cells.append(Text(f"{span(progress.left_s)} left", "dim"))
    parts.add_row(*cells)
    return parts


def _metrics(progress: RunProgress) -> Text | None:
    if not progress.metrics:
        return None
    shown = sorted(progress.metrics.items(), key=lambda pair: (pair[0] != "loss", pair[0]))
    text = Text()
    for name, value in shown[:_METRICS_MAX]:
        text.append(f"{name} ", "dim").append(number(value), "bold").append("   ")
    if len(shown) > _METRICS_MAX:
        text.append(f"and {len(shown) - _METRICS_MAX} more", "dim")
    text.rstrip()
    return text


def _slow(progress: RunProgress) -> Text | None:
    slow = progress.slowest
    return None if slow is None else Text(f"worker {slow.worker}: {slow.text}", "yellow")


def _workers(cells: Sequence[WorkerCell]) -> Text:
    """`1 ▮▮ 312   2 ▮▮ 312`: number, lanes, step; the node too when there are several."""
    if not cells:
        return Text("none yet", "dim")
    several = len({cell.node for cell in cells}) > 1
    most = max((cell.step or 0 for cell in cells), default=0)
    text = Text()
    for at, cell in enumerate(cells):
        if at:
            text.append("   ")
        text.append(f"{cell.worker} ", "bold")
        text.append(_blocks(cell), _colour(cell))
        if cell.phase is WorkerPhase.RUNNING and cell.step is not None:
            behind = cell.step < most - 1
            text.append(f" {cell.step:,}", "yellow" if behind else "dim")
        else:
            text.append(f" {'leaves' if cell.leaving else _WORDS[cell.phase]}", "dim")
        if several:
            text.append(f"@{cell.node}", "dim")
    return text


_WORDS: Final = {
    WorkerPhase.STARTING: "starting",
    WorkerPhase.READY: "ready",
    WorkerPhase.RUNNING: "joining",
    WorkerPhase.GONE: "gone",
}


def _blocks(cell: WorkerCell) -> str:
    if not cell.lanes:
        return "▯"
    return "▮" * cell.lanes if cell.lanes <= _BLOCKS_MAX else f"▮x{cell.lanes}"


def _colour(cell: WorkerCell) -> str:
    if cell.leaving:
        return "yellow"
    return "green" if cell.phase is WorkerPhase.RUNNING else "cyan"


def _checkpoint(progress: RunProgress) -> Text:
    if progress.committed_step is None:
        return Text("writing the first one" if progress.saving else "none yet", "dim")
    since = ago(progress.committed_s, progress.at_s)
    text = Text.assemble(f"step {progress.committed_step:,}", (f", {since} ago", "dim"))
    if progress.saving:
        text.append(" (writing the next)", "dim")
    return text


def _reason(progress: RunProgress) -> Text | None:
    if progress.trouble:
        return Text(progress.trouble, "yellow", no_wrap=True, overflow="ellipsis")
    # `on 4 workers` is to be seen; what follows says what it waits for.
    plain = progress.phase is Phase.RUNNING and ";" not in progress.reason
    return None if plain or not progress.reason else Text(progress.reason, "italic")


def _lines_of(cells: Sequence[WorkerCell], width: int) -> int:
    """Lines that the workers take beyond the first, roughly."""
    each = 16 + max((len(cell.node) for cell in cells), default=0)
    return len(cells) * each // max(width - 20, 20)


# --- the same in a line ---------------------------------------------------------------------------


def progress_line(progress: RunProgress) -> str:
    """Where the run is, for a pipe or a log."""
    total = f"/{progress.total}" if progress.total is not None else ""
    parts = [f"step {progress.step}{total}"]
    shown = sorted(progress.metrics.items(), key=lambda pair: (pair[0] != "loss", pair[0]))
    parts += [f"{name} {number(value)}" for name, value in shown[:_METRICS_MAX]]
    if progress.rate is not None:
        parts.append(f"{number(progress.rate)} steps/s")
    working = sum(1 for cell in progress.cells if cell.phase is WorkerPhase.RUNNING)
    parts.append(many(working, "worker"))
    if progress.slowest is not None:
        parts.append(f"worker {progress.slowest.worker} slow ({progress.slowest.ratio:.1f}x)")
    if progress.committed_step is not None:
        parts.append(f"checkpoint {progress.committed_step}")
    if progress.phase is not Phase.RUNNING:
        parts.append(f"{progress.phase.value}: {progress.reason}")
    return " · ".join(parts)


def number(value: float) -> str:
    """Short, and never more exact than it is worth: `0.0412`, `12.4`, `3,174`."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}" if size >= 1e-4 or value == 0 else f"{value:.1e}"
