"""Charts as SVG, readable at a glance in light and dark: bars for subjects, lines for growth.

Colours follow the reader's scheme; ours is filled, peers are pale, limits are dashed. Every bar says
its figure, so that nothing hangs on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.figures import number

WIDTH = 760
LABEL_WIDTH = 236
ROW_HEIGHT = 26
STYLE = """
svg { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; }
.back { fill: #ffffff; } .text { fill: #1f2328; } .soft { fill: #59636e; }
.ours { fill: #0969da; } .peer { fill: #c2ccd6; }
.limit { fill: none; stroke: #8c959f; stroke-dasharray: 4 3; }
.span { stroke: #59636e; stroke-width: 1.5; } .axis { stroke: #d1d9e0; }
.line { fill: none; stroke: #0969da; stroke-width: 2.5; } .dot { fill: #0969da; }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117; } .text { fill: #e6edf3; } .soft { fill: #9198a1; }
.ours { fill: #4493f8; } .peer { fill: #3d444d; } .limit { stroke: #656c76; }
.span { stroke: #9198a1; } .axis { stroke: #3d444d; }
.line { stroke: #4493f8; } .dot { fill: #4493f8; }
}
"""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    kind: str = "peer"
    """ours, peer or limit."""
    low: float | None = None
    high: float | None = None


def bars(title: str, note: str, data: Sequence[Bar], *, show: Callable[[float], str] = number) -> str:
    """Horizontal bars, in the order given; the spread is a thin line over the end of each."""
    height = 62 + ROW_HEIGHT * len(data)
    room = WIDTH - LABEL_WIDTH - 90
    largest = max((max(bar.value, bar.high or 0.0) for bar in data), default=1.0) or 1.0
    parts = [_text(16, 24, title, "text", weight="600"), _text(16, 42, note, "soft", size=12)]
    for position, bar in enumerate(data):
        y = 56 + position * ROW_HEIGHT
        length = max(1.5, room * bar.value / largest)
        weight = "600" if bar.kind == "ours" else "400"
        parts.append(_text(LABEL_WIDTH - 8, y + 14, bar.label, "text", anchor="end", weight=weight))
        parts.append(
            f'<rect class="{bar.kind}" x="{LABEL_WIDTH}" y="{y}" width="{length:.1f}"'
            ' height="18" rx="3"/>'
        )
        end = length
        if bar.low is not None and bar.high is not None and bar.high > bar.low:
            left, right = (LABEL_WIDTH + room * value / largest for value in (bar.low, bar.high))
            parts.append(
                f'<path class="span" d="M{left:.1f} {y + 9}H{right:.1f}M{left:.1f} {y + 5}v8'
                f'M{right:.1f} {y + 5}v8"/>'
            )
            end = max(end, right - LABEL_WIDTH)
        parts.append(_text(LABEL_WIDTH + end + 7, y + 14, show(bar.value), "text", weight=weight))
    return _svg(title, height, parts)


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]


def lines(title: str, note: str, line: Line, *, unit_x: str, log_x: bool = True) -> str:
    """One line over growing amounts, from zero, each point with its figure."""
    height, left, top, bottom = 260, 60, 66, 214
    room = WIDTH - left - 60
    xs = [math.log10(x) if log_x else x for x, _ in line.points]
    low, high = min(xs), max(xs)
    largest = max(y for _, y in line.points) * 1.15 or 1.0
    parts = [_text(16, 24, title, "text", weight="600"), _text(16, 42, note, "soft", size=12)]
    parts.append(f'<path class="axis" d="M{left} {bottom}H{WIDTH - 40}"/>')
    spots = []
    for (x, y), place in zip(line.points, xs, strict=True):
        across = left + room * ((place - low) / ((high - low) or 1.0))
        up = bottom - (bottom - top) * y / largest
        spots.append(f"{across:.1f},{up:.1f}")
        parts.append(f'<circle class="dot" cx="{across:.1f}" cy="{up:.1f}" r="4"/>')
        parts.append(_text(across, up - 10, number(y), "text", anchor="middle"))
        parts.append(_text(across, bottom + 18, f"{x:,.0f}", "soft", anchor="middle", size=12))
    parts.insert(3, f'<polyline class="line" points="{" ".join(spots)}"/>')
    parts.append(_text(left + room / 2, bottom + 36, unit_x, "soft", anchor="middle", size=12))
    return _svg(title, height, parts)


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
    )


def _text(
    x: float,
    y: float,
    text: str,
    kind: str,
    *,
    anchor: str = "start",
    weight: str = "400",
    size: int = 13,
) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
        f' font-size="{size}">{escape(text)}</text>'
    )
