"""A run of the laboratory as one HTML page: the figures, a timeline, and every violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from html import escape

from tests.chaos.case import Case, Event, Violation

WIDTH, LANE, LEFT, TOP = 1200, 14, 130, 60
LANES_MAX = 80
COLOURS = ("#c0392b", "#d35400", "#8e44ad", "#16a085", "#2980b9", "#7f8c8d", "#b7950b", "#2c3e50")
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1360px; color: #222 }}
pre {{ background: #f6f6f6; padding: 1em; overflow-x: auto }}
.bad {{ border-left: 4px solid #c0392b }} svg {{ background: #fff; border: 1px solid #ddd }}
.key span {{ display: inline-block; margin-right: 1.2em }}
</style>
<h1>{title}</h1>
<pre>{figures}</pre>
<h2>Timeline</h2>
<p>A lane for each of the first {lanes} processes; a mark is a handler that began. Vertical lines are
faults. On top: handlers that began in each half second.</p>
{timeline}
<p class="key">{key}</p>
<h2>Violations</h2>
{violations}
</html>
"""


def page(title: str, figures: str, case: Case, violations: list[Violation]) -> str:
    kinds = sorted({fault["fault"] for fault in case.faults})
    colours = {kind: COLOURS[number % len(COLOURS)] for number, kind in enumerate(kinds)}
    key = "".join(f'<span style="color:{c}">▌ {escape(kind)}</span>' for kind, c in colours.items())
    shown = "".join(f'<pre class="bad">{escape(str(violation))}</pre>' for violation in violations[:50])
    return PAGE.format(
        title=escape(title),
        figures=escape(figures.strip()),
        timeline=_timeline(case, colours),
        key=key,
        lanes=LANES_MAX,
        violations=shown or "<p>None.</p>",
    )


def _timeline(case: Case, colours: dict[str, str]) -> str:
    runs = [run for all_runs in case.runs.values() for run in all_runs]
    if not runs:
        return "<p>Nothing ran.</p>"
    began = min(event["at"] for event in case.events)
    ended = max(event["at"] for event in case.events)
    lanes = {pid: number for number, pid in enumerate(_in_order(runs)[:LANES_MAX])}
    height = TOP + LANE * len(lanes) + 30

    def x(moment: float) -> float:
        return LEFT + (moment - began) / max(ended - began, 0.001) * (WIDTH - LEFT - 10)

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img" aria-label="timeline">']
    parts += _rate(runs, began, x)
    for fault in case.faults:
        place = f'x1="{x(fault["at"]):.1f}" x2="{x(fault["at"]):.1f}" y1="{TOP}" y2="{height - 25}"'
        title = escape(f"{fault['at'] - began:.2f} s: {fault['fault']}")
        colour = colours[fault["fault"]]
        parts.append(f'<line {place} stroke="{colour}" opacity="0.7"><title>{title}</title></line>')
    for pid, number in lanes.items():
        parts.append(f'<text x="4" y="{TOP + LANE * number + 11}" font-size="10">process {pid}</text>')
    # One mark for all that began within the same point of the picture.
    marks = {(lanes[run["pid"]], round(x(run["at"]))) for run in runs if run["pid"] in lanes}
    for number, place in sorted(marks):
        y = TOP + LANE * number + 2
        parts.append(f'<rect x="{place}" y="{y}" width="1" height="{LANE - 4}" fill="#555"/>')
    step = max(1, round((ended - began) / 12))
    for second in range(0, int(ended - began) + 1, step):
        parts.append(
            f'<text x="{x(began + second):.1f}" y="{height - 8}" font-size="10">{second} s</text>'
        )
    return "".join([*parts, "</svg>"])


def _rate(runs: list[Event], began: float, x: Callable[[float], float]) -> list[str]:
    """Handlers per half second, as bars."""
    counts = Counter(int((run["at"] - began) * 2) for run in runs)
    most = max(counts.values())
    return [
        f'<rect x="{x(began + slot / 2):.1f}" y="{50 - 45 * count / most:.1f}" width="4"'
        f' height="{45 * count / most:.1f}" fill="#27ae60"><title>{count}</title></rect>'
        for slot, count in sorted(counts.items())
    ]


def _in_order(runs: list[Event]) -> list[int]:
    """Processes by their first run."""
    return list(dict.fromkeys(run["pid"] for run in sorted(runs, key=lambda run: run["at"])))
