"""Pictures as inline SVG that is as wide as its place: coordinates are percentages, so text keeps its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from slimtier.bench.statistics import Interval

# around 0, about 8 pixels across
MARKS = (
    '<circle r="4"/>',
    '<rect x="-3.6" y="-3.6" width="7.2" height="7.2"/>',
    '<path d="M0-4.8 4.4 3.4H-4.4Z"/>',
    '<path d="M0-5.2 5.2 0 0 5.2-5.2 0Z"/>',
    '<path d="M0 4.8 4.4-3.4H-4.4Z"/>',
    '<path d="M-4-1.4H-1.4V-4H1.4V-1.4H4V1.4H1.4V4H-1.4V1.4H-4Z"/>',
)
COLOURS = 8
# the plainest first; those that do not crowd the ones before are shown
_RATIOS = (1.0, 2.0, 0.5, 4.0, 8.0, 16.0, 32.0, 0.25, 0.125, 3.0, 6.0, 12.0, 1.5, 0.75, 1.25, 0.9, 1.1, 0.95, 1.05)


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value stands, in percent of the width or height. `logarithmic`: of ratios, so that half and double are
    as far from 1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False
    down: bool = False  # 0 at the bottom, as y goes

    def at(self, value: float) -> float:
        spread: Callable[[float], float] = math.log if self.logarithmic else float
        value = min(max(value, self.low), self.high)
        share = (spread(value) - spread(self.low)) / (spread(self.high) - spread(self.low))
        return round(100 * (1 - share if self.down else share), 2)


def ratio_scale(intervals: Iterable[Interval | None], apart: float = 17.0) -> Scale:
    """A scale that has room for all the intervals, and 1. `apart`: percent of the width between two labels."""
    bounds = [max(bound, 0.05) for one in intervals if one for bound in (one.low, one.high)] or [1.0]
    low, high = min(0.92, *bounds) / 1.04, max(1.08, *bounds) * 1.04
    scale = Scale(low, high, (), logarithmic=True)
    ticks: list[float] = []
    for tick in _RATIOS:
        if low <= tick <= high and all(abs(scale.at(tick) - scale.at(other)) >= apart for other in ticks):
            ticks.append(tick)
    return replace(scale, ticks=tuple(sorted(ticks)))


def linear_scale(values: Sequence[float], *, down: bool = False, zero: bool = False) -> Scale:
    """A scale for the values with round ticks; `zero`: begin there."""
    low, high = min(values), max(values)
    if zero:
        low = min(low, 0.0)
    step = _round_step((high - low or abs(high) or 1.0) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    ticks = tuple(round(number * step, 10) for number in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks, down=down)


def _round_step(size: float) -> float:
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= size * 0.999)


def picture(body: str, label: str, height: int, kind: str = "") -> str:
    """An SVG of the width of its place."""
    name = f' class="{kind}"' if kind else ""
    return f'<svg{name} width="100%" height="{height}" role="img" aria-label="{escape(label)}">{body}</svg>'


def mark(number: int, x: float, y: str = "50%", title: str = "") -> str:
    """A system's mark at x percent. The shape says the same as the colour."""
    named = f"<title>{escape(title)}</title>" if title else ""
    return f'<svg x="{x}%" y="{y}" class="mark c{number % COLOURS}">{named}{MARKS[number % len(MARKS)]}</svg>'


def key(number: int) -> str:
    """A system's mark for a legend."""
    shape = MARKS[number % len(MARKS)]
    return (
        f'<svg class="key mark c{number % COLOURS}" width="12" height="12" viewBox="-6 -6 12 12" '
        f'aria-hidden="true">{shape}</svg>'
    )


def interval_bar(interval: Interval | None, scale: Scale, label: str, kind: str) -> str:
    """A value with its interval beside the line of 1; `kind` is the class of the mark."""
    grid = "".join(_line(scale.at(tick), 0, scale.at(tick), 100, "grid") for tick in scale.ticks if tick != 1.0)
    body = grid + _line(scale.at(1.0), 0, scale.at(1.0), 100, "one")
    if interval is not None:
        low, middle, high = (scale.at(bound) for bound in (interval.low, interval.value, interval.high))
        body += f'<g class="{kind}"><title>{escape(label)}</title>{_line(low, 50, high, 50, "whisker")}'
        body += f'<svg x="{middle}%" y="50%"><circle r="4"/></svg></g>'
    return picture(body, label, 26, "bar")


def ratio_axis(scale: Scale) -> str:
    """The ticks of interval_bar, for the head of its column."""
    words = "".join(
        f'<text x="{scale.at(tick)}%" y="12" text-anchor="middle">{tick:g}{"×" if tick == 1.0 else ""}</text>'
        for tick in scale.ticks
    )
    return f'<svg width="100%" height="16" class="bar axis" aria-hidden="true">{words}</svg>'


@dataclass(frozen=True, slots=True)
class Series:
    """A system's points (x, y), the system's number for its mark and dash; `spreads`: low and high of y."""

    number: int
    name: str
    points: tuple[tuple[float, float], ...]
    spreads: tuple[tuple[float, float] | None, ...] = ()


def curves(several: Sequence[Series], x: Scale, y: Scale, label: str, height: int = 260) -> str:
    """Lines through the points of each system."""
    body = _grid(x, y)
    for series in several:
        dash = f" d{series.number // COLOURS}" if series.number >= COLOURS else ""
        pairs = zip(series.points, series.points[1:], strict=False)
        body += f'<g class="curve c{series.number % COLOURS}{dash}">'
        body += "".join(_line(x.at(a), y.at(b), x.at(c), y.at(d), "") for (a, b), (c, d) in pairs)
        body += "</g>"
    for series in several:
        for a, b in series.points:
            body += mark(series.number, x.at(a), f"{y.at(b)}%", f"{series.name}, position {a:g}: {b:.3f}")
    return picture(body, label, height, "plot")


def scatter(
    several: Sequence[Series], x: Scale, y: Scale, label: str, floor: float | None = None, height: int = 210
) -> str:
    """A point a system, with its spread; `floor` is a dashed line."""
    body = _grid(x, y, "×" if x.logarithmic else "")
    if floor is not None and y.low <= floor <= y.high:
        body += _line(0, y.at(floor), 100, y.at(floor), "floor")
        body += f'<text x="100%" y="{y.at(floor)}%" dy="-4" text-anchor="end">floor</text>'
    for series in several:
        for (a, b), spread in zip(series.points, series.spreads or (None,) * len(series.points), strict=True):
            if spread is not None and spread[0] != spread[1]:
                line = _line(x.at(a), y.at(spread[0]), x.at(a), y.at(spread[1]), "whisker")
                body += f'<g class="c{series.number % COLOURS}">{line}</g>'
            body += mark(series.number, x.at(a), f"{y.at(b)}%", f"{series.name}: {a:.2f}×, {b:.3f}")
    return picture(body, label, height, "plot")


def _grid(x: Scale, y: Scale, unit: str = "") -> str:
    lines = [_line(0, y.at(tick), 100, y.at(tick), "grid") for tick in y.ticks]
    lines += [_line(x.at(tick), 0, x.at(tick), 100, "grid") for tick in x.ticks]
    words = [f'<text x="0" y="{y.at(tick)}%" dx="-8" dy="4" text-anchor="end">{_tick(tick)}</text>' for tick in y.ticks]
    words += [
        f'<text x="{x.at(tick)}%" y="100%" dy="18" text-anchor="middle">{_tick(tick)}{unit}</text>' for tick in x.ticks
    ]
    return "".join(lines) + "".join(words)


def _tick(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def stack(parts: Sequence[tuple[str, str, float]], whole: float, label: str) -> str:
    """A bar of parts (class, word, size) whose full width stands for `whole`."""
    body, left = "", 0.0
    total = sum(size for _, _, size in parts)
    for kind, word, size in parts:
        width = 100 * size / whole
        text = f"{100 * size / total:.0f} %" if width >= 16 else ""
        body += (
            f'<svg x="{left:.2f}%" y="3" width="{width:.2f}%" height="20" class="part {kind}">'
            f"<title>{escape(word)}: {100 * size / total:.1f} %</title>"
            f'<rect width="100%" height="100%"/><text x="50%" y="14" text-anchor="middle">{text}</text></svg>'
        )
        left += width
    return picture(body, label, 26)


def strip(values: Sequence[float], ratio: Interval, noisy: float, label: str) -> str:
    """Ratios as dots, the band within which a machine is quiet, and their median with its interval."""
    scale = ratio_scale([ratio, Interval(1.0, min(*values, 1 - noisy), max(*values, 1 + noisy))])
    low, high = scale.at(1 - noisy), scale.at(1 + noisy)
    body = f'<rect class="quiet" x="{low}%" y="0" width="{high - low:.2f}%" height="44"/>'
    body += "".join(_line(scale.at(tick), 0, scale.at(tick), 100, "grid") for tick in scale.ticks)
    body += _line(scale.at(1.0), 0, scale.at(1.0), 100, "one")
    for number, value in enumerate(values):  # spread over a few heights, or equal ones hide each other
        body += f'<circle class="dot" cx="{scale.at(value)}%" cy="{8 + 4 * (number % 4)}" r="2.5"/>'
    left, right = scale.at(ratio.low), scale.at(ratio.high)
    body += f'<g class="ours"><line class="whisker" x1="{left}%" x2="{right}%" y1="34" y2="34"/>'
    body += f'<svg x="{scale.at(ratio.value)}%" y="34"><circle r="4.5"/></svg></g>'
    words = "".join(f'<text x="{scale.at(tick)}%" y="58" text-anchor="middle">{tick:g}×</text>' for tick in scale.ticks)
    return picture(f'<svg width="100%" height="44" overflow="visible">{body}</svg>{words}', label, 62, "strip")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<line{name} x1="{x1}%" y1="{y1}%" x2="{x2}%" y2="{y2}%"/>'
