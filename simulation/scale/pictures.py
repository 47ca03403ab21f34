"""Lines on logarithmic axes, as SVG. Pure: the same lines give the same bytes.

Small on purpose: text stays text, and a curve is one path. No library is needed to make them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 400  # without the legend, which is below
_LEFT: Final = 70
_RIGHT: Final = 20
_TOP: Final = 40
_BOTTOM: Final = 50
_LEGEND: Final = 18  # of height for each line of the legend
# Told apart also by those who see few colours, and by dashes in print.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#555555")
_DASHES: Final = ("", "7 4", "2 3", "9 3 2 3", "4 4")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Chart:
    """Several lines over one axis. `limit`: a height that should not be passed, and its name."""

    title: str
    across: str
    up: str
    lines: tuple[Line, ...]
    limit: tuple[float, str] | None = None


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return self.first + part * (self.last - self.first)

    def marks(self) -> list[float]:
        """Powers of ten; where there are not two of them, also some between."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        for digits in ((1,), (1, 2, 3, 5, 7)):
            every = [digit * 10.0**power for power in powers for digit in digits]
            found = [value for value in every if self.low <= math.log10(value) <= self.high]
            if len(found) > 1:
                return found
        return found


def svg(chart: Chart) -> str:
    """The picture. Every value must be above 0: the axes are logarithmic."""
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points]
    if chart.limit is not None:
        ys.append(chart.limit[0])
    bottom = HEIGHT - _BOTTOM
    across = _Scale(*_range(xs, whole=False), _LEFT, WIDTH - _RIGHT)
    up = _Scale(*_range(ys, whole=True), bottom, _TOP)
    drawn = [_text(WIDTH / 2, 22, chart.title, "middle", 15)]
    drawn += _grid(across, up)
    drawn.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 12, chart.across, "middle", 12))
    turned = f'transform="rotate(-90 16 {bottom / 2 + 20:.0f})"'
    drawn.append(_text(16, bottom / 2 + 20, chart.up, "middle", 12, turned))
    if chart.limit is not None:
        value, name = chart.limit
        y = up.at(value)
        drawn.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" '
            'stroke="#c00" stroke-width="1"/>'
        )
        drawn.append(_text(WIDTH - _RIGHT - 4, y - 5, name, "end", 11, 'fill="#c00"'))
    for number, line in enumerate(chart.lines):
        drawn += _curve(number, line, across, up)
    height = HEIGHT + _LEGEND * len(chart.lines) + 4
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" role="img">'
    )
    title = f"<title>{escape(chart.title)}</title>"
    paper = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([head, title, paper, *drawn, "</svg>", ""])


def _range(values: Sequence[float], *, whole: bool) -> tuple[float, float]:
    """Powers of ten between which all lie; `whole`: whole powers."""
    low, high = math.log10(min(values)), math.log10(max(values))
    if whole:
        low, high = math.floor(low), math.ceil(high)
    return low, high if high > low else low + 1


def _grid(across: _Scale, up: _Scale) -> list[str]:
    drawn = []
    for value in up.marks():
        y = up.at(value)
        drawn.append(_rule(across.first, y, across.last, y))
        drawn.append(_text(_LEFT - 6, y + 4, _short(value), "end", 11))
    for value in across.marks():
        x = across.at(value)
        drawn.append(_rule(x, up.first, x, up.last))
        drawn.append(_text(x, HEIGHT - _BOTTOM + 16, _short(value), "middle", 11))
    return drawn


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#ddd"/>'


def _curve(number: int, line: Line, across: _Scale, up: _Scale) -> list[str]:
    colour, dashes = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
    style = f'fill="none" stroke="{colour}" stroke-width="2"'
    style += f' stroke-dasharray="{dashes}"' if dashes else ""
    places = "L".join(f"{across.at(x):.1f} {up.at(y):.1f}" for x, y in line.points)
    y = HEIGHT + 10 + number * _LEGEND
    return [
        f'<path d="M{places}" {style}/>',
        f'<path d="M{_LEFT + 10} {y - 4}h28" {style}/>',
        _text(_LEFT + 44, y, line.name, "start", 12),
    ]


def _text(x: float, y: float, words: str, anchor: str, size: int, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}{' ' if more else ''}{more}>{escape(words)}</text>"


def _short(value: float) -> str:
    """`10,000`, `0.01`."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
