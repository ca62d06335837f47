"""Charts as SVG: axes, lines, marks, the values for a script that shows them under the pointer, and a
table for screen readers. Everything that becomes text is escaped; without a script a chart is complete
but for the values under the pointer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10

import msgspec
from markupsafe import Markup

from commandbus.interfaces.web.windows import Window

WIDTH, HEIGHT = 560, 180
LEFT, RIGHT, TOP, BOTTOM = 54, 8, 12, 24
TIMES_MAX = 6
TABLE_ROWS = 12


class Series(msgspec.Struct, frozen=True):
    """A line of a chart; `kind` is its class, by which it gets its colour."""

    name: str
    kind: str
    values: Sequence[float | None]


Format = Callable[[float], str]

DAY = 86_400
CLOCK_STEPS = (15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, DAY)
"""Round times, from a quarter of a minute on: 3.33 min is hard to read."""


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


class Mark(msgspec.Struct, frozen=True):
    """Something that happened to the fleet, as a line across the chart."""

    at: datetime
    text: str


def line_chart(
    title: str,
    window: Window,
    series: Sequence[Series],
    form: Format = plain,
    marks: Sequence[Mark] = (),
) -> Markup:
    """A chart of lines over a window of time; each series has a value for each bucket."""
    known = [value for line in series for value in line.values if value is not None]
    if not known:
        return _empty(title, "collecting figures …" if window.span else "no figures of this time")
    top, ticks = _scale(max(known), form)

    def x(seconds: float) -> float:
        share = (seconds - window.begin) / (window.end - window.begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    places = [x(window.begin + (index + 0.5) * window.width) for index in range(window.count)]
    shown = [mark for mark in marks if window.begin <= mark.at.timestamp() <= window.end]
    parts = [*_grid(ticks, y, form), *_clock(window, x), *_marks(shown, x)]
    for line in series:
        parts += _line(line, places, y)
    drawing = Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="chart" tabindex="0" '
        'data-chart="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, title, _values(window, series, form, shown), Markup("").join(parts))
    return drawing + _table(title, window, series, form)


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


def _empty(title: str, text: str) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="chart">'
        '<text x="{}" y="{}" class="nothing">{}</text></svg>'
    ).format(WIDTH, HEIGHT, f"{title}: {text}", WIDTH // 2, HEIGHT // 2, text)


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


def _clock(window: Window, x: Callable[[float], float]) -> list[Markup]:
    """Round times below the axis. A script shows them in the time zone of the browser."""
    span = window.end - window.begin
    step = next((one for one in CLOCK_STEPS if span / one <= TIMES_MAX), ceil(span / DAY / 5) * DAY)
    shown = "%d %b" if step >= DAY else "%H:%M:%S" if step < 60 else "%H:%M"
    first = ceil(window.begin / step) * step
    return [
        Markup(
            '<text class="tick" x="{:.1f}" y="{}" text-anchor="middle" data-time="{}" data-step="{}">'
            "{}</text>"
        ).format(x(at), HEIGHT - 7, at, step, datetime.fromtimestamp(at, UTC).strftime(shown))
        for at in range(first, window.end + 1, step)
        if LEFT + 12 <= x(at) <= WIDTH - RIGHT - 12
    ]


def _marks(marks: Sequence[Mark], x: Callable[[float], float]) -> list[Markup]:
    drawn = Markup(
        '<g class="mark"><title>{title}</title><line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{low}"/>'
        '<polygon points="{left:.1f},{tip} {right:.1f},{tip} {x:.1f},{top}"/></g>'
    )
    found: list[Markup] = []
    for mark in marks:
        at, label = x(mark.at.timestamp()), f"{mark.at.strftime('%H:%M:%S UTC')} {mark.text}"
        sides = {"left": at - 4, "right": at + 4, "top": TOP, "low": HEIGHT - BOTTOM, "tip": TOP - 7}
        found.append(drawn.format(title=label, x=at, **sides))
    return found


def _line(line: Series, places: Sequence[float], y: Callable[[float], float]) -> list[Markup]:
    """Gaps, where nothing is known, are left open; a value between two of them is a dot."""
    pieces: list[list[str]] = [[]]
    for place, value in zip(places, line.values, strict=True):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{place:.1f},{y(value):.1f}")
    drawn = Markup('<polyline class="{} {}" points="{}"/>')
    return [
        drawn.format("line dot", line.kind, " ".join(piece * 2))
        if len(piece) == 1
        else drawn.format("line", line.kind, " ".join(piece))
        for piece in pieces
        if piece
    ]


def _values(window: Window, series: Sequence[Series], form: Format, marks: Sequence[Mark]) -> str:
    """What a script shows under the pointer, as JSON: every value as it is written."""
    chart = {
        "begin": window.begin,
        "width": window.width,
        "plot": [LEFT, WIDTH - RIGHT, WIDTH],
        "names": [line.name for line in series],
        "kinds": [line.kind for line in series],
        "values": [["–" if value is None else form(value) for value in line.values] for line in series],
        "marks": [[mark.at.timestamp(), mark.text] for mark in marks],
    }
    return msgspec.json.encode(chart).decode()


def _table(title: str, window: Window, series: Sequence[Series], form: Format) -> Markup:
    """The newest values as a table, for screen readers."""
    head = Markup("").join(Markup("<th scope=col>{}</th>").format(line.name) for line in series)
    known = [i for i in range(window.count) if any(line.values[i] is not None for line in series)]
    rows = Markup("").join(
        Markup("<tr><th scope=row>{}</th>{}</tr>").format(
            window.at(i).strftime("%H:%M:%S"),
            Markup("").join(
                Markup("<td>{}</td>").format("–" if (v := line.values[i]) is None else form(v))
                for line in series
            ),
        )
        for i in known[-TABLE_ROWS:]
    )
    return Markup(
        '<table class="unseen"><caption>{}</caption><thead><tr><th scope=col>time</th>{}</tr></thead>'
        "<tbody>{}</tbody></table>"
    ).format(title, head, rows)
