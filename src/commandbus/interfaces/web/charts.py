"""Charts as SVG, drawn here: axes, values on hover, and a table for those who cannot see them.

Everything that becomes text goes through escaping; nothing needs a script or a style of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from math import ceil, floor, log10

import msgspec
from markupsafe import Markup, escape

WIDTH, HEIGHT = 460, 170
LEFT, RIGHT, TOP, BOTTOM = 54, 8, 10, 24
POINTS_MAX = 120


class Series(msgspec.Struct, frozen=True):
    """A line of a chart; `kind` is its class, by which it gets its colour."""

    name: str
    kind: str
    values: Sequence[float | None]


Format = Callable[[float], str]

DAY = 86_400
CLOCK_STEPS = (15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, DAY)
"""Round times, from a quarter of a minute on: nobody reads 3.33 min."""


def plain(value: float) -> str:
    """A number in as few characters as its size needs."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g}M"
    if value >= 1_000:
        return f"{value / 1_000:.3g}k"
    return f"{value:.3g}"


def count(value: float) -> str:
    """A number of things, which has no half."""
    return plain(value)


def seconds(value: float) -> str:
    if value == 0:
        return "0"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7_200 else f"{value / 3600:.3g} h"


def line_chart(
    title: str, times: Sequence[datetime], series: Sequence[Series], form: Format = plain
) -> Markup:
    """A chart of lines over time."""
    step = max(1, ceil(len(times) / POINTS_MAX))
    picked = list(range(0, len(times), step))
    if picked and picked[-1] != len(times) - 1:
        picked.append(len(times) - 1)
    times = [times[i] for i in picked]
    series = [Series(s.name, s.kind, [s.values[i] for i in picked]) for s in series]
    if len(times) < 2:
        return _empty(title)
    highest = max((v for s in series for v in s.values if v is not None), default=0.0)
    top, ticks = _scale(highest, form)
    span = (times[-1] - times[0]).total_seconds() or 1.0

    def x(moment: datetime) -> float:
        return LEFT + (moment - times[0]).total_seconds() / span * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [*_grid(ticks, y, form), *_clock(times, x, span)]
    for line in series:
        parts += _line(line, times, x, y)
    parts += _hovers(times, series, x, form)
    drawing = Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="chart">{}</svg>'
    ).format(WIDTH, HEIGHT, title, Markup("").join(parts))
    return drawing + _table(title, times, series, form)


def sparkline(values: Sequence[float], title: str) -> Markup:
    """A small line without axes, for a row of a table."""
    if len(values) < 2:
        return Markup('<svg viewBox="0 0 96 22" class="spark" aria-hidden="true"></svg>')
    picked = values[-48:]
    top = max(picked) or 1.0
    path = " ".join(
        f"{i / (len(picked) - 1) * 94 + 1:.1f},{20 - v / top * 18:.1f}" for i, v in enumerate(picked)
    )
    return Markup(
        '<svg viewBox="0 0 96 22" class="spark" role="img" aria-label="{}">'
        '<title>{}</title><polyline points="{}"/></svg>'
    ).format(title, title, path)


def bar(parts: Sequence[tuple[str, float]], title: str) -> Markup:
    """A bar of parts whose shares add up to at most 1; for the progress of a batch."""
    drawn, begin = Markup(""), 0.0
    for kind, share in parts:
        if share > 0:
            drawn += Markup('<rect class="{}" x="{:.2f}" y="0" width="{:.2f}" height="6"/>').format(
                kind, begin, share * 100
            )
        begin += share * 100
    return Markup(
        '<svg viewBox="0 0 100 6" preserveAspectRatio="none" class="bar" role="img" aria-label="{}">'
        '<title>{}</title><rect class="rest" width="100" height="6"/>{}</svg>'
    ).format(title, title, drawn)


def _empty(title: str) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="chart">'
        '<text x="{}" y="{}" class="nothing">collecting figures …</text></svg>'
    ).format(WIDTH, HEIGHT, f"{title}: no figures yet", WIDTH // 2, HEIGHT // 2)


def _scale(highest: float, form: Format) -> tuple[float, list[float]]:
    """The end of the axis and its marks, at round numbers."""
    if highest <= 0:
        return 1.0, [0.0, 1.0]
    step = _step(highest / 4, form)
    marks = ceil(highest / step)
    return step * marks, [step * i for i in range(marks + 1)]


def _step(least: float, form: Format) -> float:
    if form is count and least <= 1:
        return 1.0
    if form is seconds and least > CLOCK_STEPS[0] / 2:
        return next((step for step in CLOCK_STEPS if step >= least), ceil(least / DAY) * DAY)
    size: float = 10 ** floor(log10(least))
    rounds = (1, 2, 5, 10) if form is count else (1, 2, 2.5, 5, 10)
    return next(size * m for m in rounds if size * m >= least)


def _grid(ticks: Sequence[float], y: Callable[[float], float], form: Format) -> list[Markup]:
    return [
        Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            LEFT, WIDTH - RIGHT, y(tick), y(tick)
        )
        + Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            LEFT - 6, y(tick) + 3.5, form(tick)
        )
        for tick in ticks
    ]


def _clock(times: Sequence[datetime], x: Callable[[datetime], float], span: float) -> list[Markup]:
    shown = "%H:%M:%S" if span < 300 else "%H:%M" if span < 2 * 86_400 else "%d %b"
    first, last = times[0], times[-1]
    middle = first + (last - first) / 2
    places = [(first, "start"), (middle, "middle"), (last, "end")]
    if span < 3:  # the same second would be told twice
        del places[1]
    return [
        Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
            x(moment), HEIGHT - 7, anchor, moment.strftime(shown)
        )
        for moment, anchor in places
    ]


def _line(
    line: Series,
    times: Sequence[datetime],
    x: Callable[[datetime], float],
    y: Callable[[float], float],
) -> list[Markup]:
    """Gaps, where nothing is known, are left open; a value between two of them is a dot."""
    pieces: list[list[str]] = [[]]
    for moment, value in zip(times, line.values, strict=True):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{x(moment):.1f},{y(value):.1f}")
    drawn = Markup('<polyline class="{} {}" points="{}"/>')
    return [
        drawn.format("line dot", line.kind, " ".join(piece * 2))
        if len(piece) == 1
        else drawn.format("line", line.kind, " ".join(piece))
        for piece in pieces
        if piece
    ]


def _hovers(
    times: Sequence[datetime], series: Sequence[Series], x: Callable[[datetime], float], form: Format
) -> list[Markup]:
    """A strip per moment whose title the browser shows."""
    width = (WIDTH - LEFT - RIGHT) / max(1, len(times) - 1)
    strips: list[Markup] = []
    for index, moment in enumerate(times):
        told = [moment.strftime("%d %b %H:%M:%S UTC")]
        told += [
            f"{line.name}: {form(value)}"
            for line in series
            if (value := line.values[index]) is not None
        ]
        strips.append(
            Markup(
                '<rect class="hover" x="{:.1f}" y="{}" width="{:.1f}" height="{}">'
                "<title>{}</title></rect>"
            ).format(x(moment) - width / 2, TOP, width, HEIGHT - TOP - BOTTOM, "\n".join(told))
        )
    return strips


def _table(title: str, times: Sequence[datetime], series: Sequence[Series], form: Format) -> Markup:
    """The newest values as a table, for screen readers."""
    head = Markup("").join(Markup("<th scope=col>{}</th>").format(line.name) for line in series)
    rows = Markup("").join(
        Markup("<tr><th scope=row>{}</th>{}</tr>").format(
            times[i].strftime("%H:%M:%S"),
            Markup("").join(
                Markup("<td>{}</td>").format("–" if (v := line.values[i]) is None else form(v))
                for line in series
            ),
        )
        for i in range(max(0, len(times) - 12), len(times))
    )
    return Markup(
        '<table class="unseen"><caption>{}</caption><thead><tr><th scope=col>time</th>{}</tr></thead>'
        "<tbody>{}</tbody></table>"
    ).format(escape(title), head, rows)
