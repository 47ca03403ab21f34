"""How far a plain `python train.py` is: a line on stderr that is written again and again.

On a terminal in its place, a few times a second; elsewhere (a file, a pipe) a line now and then.
What it costs a step is a look at the clock. `HOLDFAST_PROGRESS=0` turns it off. A script that
prints on the same terminal prints behind the line, and the next one is below.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TextIO

from holdfast.wire.reports import LANE_METRIC, SAMPLES_METRIC, SETTING_METRIC, TOTAL_METRIC

# A script without a job shows how far it is: on a terminal so often, elsewhere so often. Its rate
# is that of the last so many times: steady to the eye.
PROGRESS_TERMINAL_S: Final = 0.25
PROGRESS_PLAIN_S: Final = 10.0
PROGRESS_RATE_SAMPLES: Final = 20

PROGRESS_VARIABLE: Final = "HOLDFAST_PROGRESS"
_CLEARED: Final = "\r\x1b[K"
_METRICS_MAX: Final = 3
_OFF: Final = ("0", "no", "off", "false")


def progress_from_environment() -> Progress | None:
    """Progress on stderr; None: it was turned off, or there is no stderr."""
    if os.environ.get(PROGRESS_VARIABLE, "").lower() in _OFF or sys.stderr is None:
        return None
    return Progress(sys.stderr)


class Progress:
    """Shows steps as they come. `step` may be called as often as there are steps."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._terminal = stream.isatty()
        self._pause_s = PROGRESS_TERMINAL_S if self._terminal else PROGRESS_PLAIN_S
        self._began_s = clock()
        self._next_s = self._began_s + self._pause_s
        self._seen: deque[tuple[float, int]] = deque(maxlen=PROGRESS_RATE_SAMPLES)
        self._last: tuple[int, Mapping[str, float]] | None = None
        self._shown = False

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is complete."""
        now_s = self._clock()
        if not self._seen:
            self._seen.append((now_s, step))
        self._last = (step, metrics)
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._pause_s
        self._seen.append((now_s, step))
        self._shown = True
        self._write(
            f"{_CLEARED}{self._line(step, metrics)}  "
            if self._terminal
            else f"{self._line(step, metrics)}\n"
        )

    def close(self) -> None:
        """The last line stays. May be called twice."""
        last, self._last = self._last, None
        if last is None or not (self._terminal or self._shown):
            return
        step, metrics = last
        took_s = self._clock() - self._began_s
        end = f"{_step(step, metrics)}{_metrics(metrics)} · {span(took_s)}\n"
        self._write(f"{_CLEARED if self._terminal else ''}{end}")

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        (before_s, before), (now_s, now) = self._seen[0], self._seen[-1]
        rate = (now - before) / (now_s - before_s) if now_s > before_s else 0.0
        parts = [f"{_step(step, metrics)}{_metrics(metrics)}"]
        samples = metrics.get(SAMPLES_METRIC)
        if rate and samples:
            parts.append(f"{number(rate * samples)} samples/s")
        elif rate:
            parts.append(f"{number(rate)} steps/s")
        total = metrics.get(TOTAL_METRIC)
        if rate and total and total > step:
            parts.append(f"{span((total - step) / rate)} left")
        return " · ".join(parts)

    def _write(self, text: str) -> None:
        # Whoever has closed stderr does not want to see it; training goes on.
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def _step(step: int, metrics: Mapping[str, float]) -> str:
    total = metrics.get(TOTAL_METRIC)
    if not total:
        return f"step {step:,}"
    return f"step {step:,}/{int(total):,} ({min(1.0, step / total):.0%})"


def _metrics(metrics: Mapping[str, float]) -> str:
    """The loss first; what is not for people is left out."""
    hidden = (TOTAL_METRIC, SAMPLES_METRIC, LANE_METRIC)
    shown = [
        (name, value)
        for name, value in metrics.items()
        if name not in hidden and not name.startswith(SETTING_METRIC)
    ]
    shown.sort(key=lambda each: each[0] != "loss")
    return "".join(f" · {name} {value:.4g}" for name, value in shown[:_METRICS_MAX])


def number(value: float) -> str:
    """`1,234`, `12.3`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def span(seconds: float) -> str:
    """`1h05m`, `3m12s`, `8s`."""
    whole = max(0, round(seconds))
    if whole >= 3_600:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02}m"
    return f"{whole // 60}m{whole % 60:02}s" if whole >= 60 else f"{whole}s"
