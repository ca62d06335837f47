"""The drawing of a process, from left to right: its steps with forks and joins, what each run came to,
and below each step the compensations that undid it. Steps come from the declaration where the dashboard
knows it; otherwise from the order of events. Colours are those of the page, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from markupsafe import Markup

from commandbus.domain.process.declaration import Process
from commandbus.domain.process.picture import graph_of
from commandbus.domain.process.values import (
    ProcessEvent,
    ProcessEventType,
    ProcessRecord,
    ProcessStep,
    StepStatus,
)

WIDTH, HEIGHT, GAP, BELOW, LANE, MARGIN = 132, 44, 44, 16, 26, 8
KINDS = {
    StepStatus.PENDING: "running",
    StepStatus.COMPLETED: "completed",
    StepStatus.FAILED: "failed",
    StepStatus.CANCELED: "canceled",
    StepStatus.TIMED_OUT: "failed",
    StepStatus.SKIPPED: "pending",
}
LETTERS = 17
BEGAN = (ProcessEventType.STEP_SENT, ProcessEventType.STEP_WAITING, ProcessEventType.STEP_SKIPPED)
ENDED = (
    ProcessEventType.STEP_COMPLETED,
    ProcessEventType.STEP_FAILED,
    ProcessEventType.STEP_TIMED_OUT,
    ProcessEventType.STEP_SKIPPED,
)


class Edge(msgspec.Struct, frozen=True):
    source: str
    target: str
    is_other_way: bool = False
    """Taken after a failure."""


class Shape(msgspec.Struct, frozen=True):
    """The steps of a process in order, and which leads to which."""

    steps: list[str]
    edges: list[Edge]


def draw_process(
    record: ProcessRecord, trail: Sequence[ProcessEvent], declaration: type[Process[Any]] | None = None
) -> Markup:
    """An SVG of a process; empty before its first step, where nothing else is known."""
    shape = shape_of(record, trail, declaration)
    if not shape.steps:
        return Markup("")
    columns = _columns(shape)
    runs = {name: [s for s in record.steps if s.name == name and not s.compensates] for name in columns}
    undone = {name: [s for s in record.steps if s.compensates == name] for name in columns}
    places = _places(columns, undone)
    parts = [_way(edge, places, bool(runs[edge.source] and runs[edge.target])) for edge in shape.edges]
    for name, (x, y) in places.items():
        parts.append(_step(name, runs[name], x, y, is_over=record.finished_at is not None))
        for index, step in enumerate(undone[name]):
            top = y + (index + 1) * (HEIGHT + BELOW)
            parts.append(_down(x + WIDTH / 2, top - BELOW, top))
            parts.append(_box(step.name, _kind(step), _word(step), _title(step), x, top))
    low = [y + (len(undone[name]) + 1) * (HEIGHT + BELOW) - BELOW for name, (_, y) in places.items()]
    summary = ", ".join(f"{step.name} {_word(step)}" for step in record.steps)
    return Markup(
        '<svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" class="drawing" role="img" '
        'aria-label="{title}">{parts}</svg>'
    ).format(
        w=max(x for x, _ in places.values()) + WIDTH + MARGIN,
        h=max(low) + MARGIN,
        title=f"{record.process_type}: {summary}",
        parts=Markup("").join(parts),
    )


def shape_of(
    record: ProcessRecord, trail: Sequence[ProcessEvent], declaration: type[Process[Any]] | None
) -> Shape:
    """From the declaration; steps that ran and that it does not have any more come last."""
    if declaration is None:
        return inferred(trail)
    graph = graph_of(declaration)
    gone = [s.name for s in record.steps if not s.compensates and s.name not in graph.nodes]
    edges = [
        Edge(edge.source, edge.target, edge.kind == "else")
        for edge in graph.edges
        if edge.kind != "undo" and edge.target
    ]
    return Shape([*graph.nodes, *dict.fromkeys(gone)], edges)


def inferred(trail: Sequence[ProcessEvent]) -> Shape:
    """From the events: steps begun together fork from those that ended before, and a step joins all
    that ended since and led nowhere else."""
    steps: dict[str, None] = {}
    edges: dict[Edge, None] = {}
    ended: list[str] = []
    sources: list[str] = []
    failed: set[str] = set()
    for event in trail:
        name = event.step or ""
        if event.event_type in BEGAN:
            if ended:
                sources, ended = ended, []
            steps[name] = None
            for source in sources:
                if source != name:
                    edges[Edge(source, name, source in failed)] = None
        if event.event_type in ENDED and name in steps:
            ended.append(name)
            if event.event_type is not ProcessEventType.STEP_COMPLETED:
                failed.add(name)
    return Shape(list(steps), list(edges))


def _columns(shape: Shape) -> dict[str, int]:
    """Steps by the longest way to them; a way back to an earlier step does not count."""
    order = {name: index for index, name in enumerate(shape.steps)}
    columns = dict.fromkeys(shape.steps, 0)
    for _ in shape.steps:
        for edge in shape.edges:
            if order[edge.target] > order[edge.source]:
                columns[edge.target] = max(columns[edge.target], columns[edge.source] + 1)
    return columns


def _places(
    columns: dict[str, int], undone: dict[str, list[ProcessStep]]
) -> dict[str, tuple[float, float]]:
    """Left upper corners. Steps of a column lie in lanes, each as high as what undid its steps."""
    lanes: dict[str, int] = {}
    taken: dict[int, int] = {}
    for name, column in columns.items():
        lanes[name] = taken.get(column, 0)
        taken[column] = lanes[name] + 1
    heights = [0.0] * (max(lanes.values()) + 1)
    for name, lane in lanes.items():
        heights[lane] = max(heights[lane], (len(undone[name]) + 1) * (HEIGHT + BELOW) - BELOW + LANE)
    tops = [MARGIN + sum(heights[:lane]) for lane in range(len(heights))]
    return {name: (MARGIN + columns[name] * (WIDTH + GAP), tops[lane]) for name, lane in lanes.items()}


def _kind(step: ProcessStep) -> str:
    return "parked" if step.parked else KINDS[step.status]


def _word(step: ProcessStep) -> str:
    return "parked" if step.parked else str(step.status).replace("_", " ").lower()


def _title(step: ProcessStep) -> str:
    undoes = f", undoes {step.compensates}" if step.compensates else ""
    return f"{step.name}: {step.domain} {step.command_type} {_word(step)}{undoes}"


def _step(name: str, runs: list[ProcessStep], x: float, y: float, *, is_over: bool) -> Markup:
    if not runs:
        word = "not run" if is_over else "not yet"
        return _box(name, "idle", word, f"{name}: {word}", x, y)
    last = runs[-1]
    word = _word(last) if len(runs) == 1 else f"{_word(last)}, run {len(runs)}"
    return _box(name, _kind(last), word, "\n".join(map(_title, runs)), x, y)


def _box(name: str, kind: str, word: str, title: str, x: float, y: float) -> Markup:
    shown = name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"
    return Markup(
        '<g class="{kind}"><title>{title}</title>'
        '<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7"/>'
        '<text x="{tx}" y="{ty}" class="name">{name}</text>'
        '<text x="{tx}" y="{wy}" class="word">{word}</text></g>'
    ).format(
        kind=kind, title=title, x=x, y=y, w=WIDTH, h=HEIGHT, tx=x + WIDTH / 2, ty=y + 19, wy=y + 34,
        name=shown, word=word,
    )  # fmt: skip


def _way(edge: Edge, places: dict[str, tuple[float, float]], is_taken: bool) -> Markup:
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    y1, y2 = y1 + HEIGHT / 2, y2 + HEIGHT / 2
    kind = "way" + " taken" * is_taken + " other" * edge.is_other_way
    if x2 <= x1:  # back to an earlier step, above the boxes
        top = min(y1, y2) - HEIGHT / 2 - 5
        path = f"M{x1 + WIDTH / 2},{y1 - HEIGHT / 2} V{top} H{x2 + WIDTH / 2} V{y2 - HEIGHT / 2}"
        tip = _tip(x2 + WIDTH / 2, y2 - HEIGHT / 2, down=True)
        return Markup('<g class="{}"><path d="{}"/>{}</g>').format(kind, path, tip)
    begin, end = x1 + WIDTH, x2
    bend = min(GAP, end - begin) / 2
    path = f"M{begin},{y1} H{end - 2 * bend} C{end - bend},{y1} {end - bend},{y2} {end},{y2}"
    return Markup('<g class="{}"><path d="{}"/>{}</g>').format(kind, path, _tip(end, y2))


def _down(x: float, y1: float, y2: float) -> Markup:
    return Markup('<g class="way undo"><path d="M{},{} V{}"/>{}</g>').format(
        x, y1, y2, _tip(x, y2, down=True)
    )


def _tip(x: float, y: float, *, down: bool = False) -> Markup:
    points = f"{x - 6},{y - 4} {x},{y} {x - 6},{y + 4}"
    if down:
        points = f"{x - 4},{y - 6} {x},{y} {x + 4},{y - 6}"
    return Markup('<polygon class="tip" points="{}"/>').format(points)
