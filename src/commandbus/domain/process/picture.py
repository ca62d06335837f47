"""A process as a picture: its declaration as Mermaid text or as SVG, coloured by how far one is."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from commandbus.domain.process.declaration import Process
from commandbus.domain.process.values import ProcessRecord, StepStatus

_COLOURS = {
    "pending": ("#fff3bf", "#f08c00"),
    "completed": ("#d3f9d8", "#2f9e44"),
    "failed": ("#ffe3e3", "#e03131"),
    "undone": ("#e5dbff", "#7048e8"),
    "parked": ("#ffd8a8", "#d9480f"),
    "idle": ("#f1f3f5", "#868e96"),
}
_CLASSES = {
    StepStatus.PENDING: "pending",
    StepStatus.COMPLETED: "completed",
    StepStatus.FAILED: "failed",
    StepStatus.CANCELED: "failed",
    StepStatus.TIMED_OUT: "failed",
    StepStatus.SKIPPED: "completed",
}
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 150, 40, 40, 46, 20


class Edge(msgspec.Struct, frozen=True):
    source: str
    target: str
    kind: str
    """then, fork, else or undo"""


class Graph(msgspec.Struct, frozen=True):
    """Steps, their compensations, and what leads where. "" is the end of the process."""

    nodes: list[str]
    undos: list[str]
    edges: list[Edge]


def graph_of(process: type[Process[Any]]) -> Graph:
    nodes, undos, edges = list(process.steps), [], []
    for name, step in process.steps.items():
        ways = [(target, "then") for target in step.then] + [(target, "fork") for target in step.fork]
        ends = not ways or len(step.then) < len(step.declared_then or ())
        edges += [Edge(name, target, kind) for target, kind in ways]
        edges += [Edge(name, "", "then")] if ends else []
        edges += [Edge(name, target, "else") for target in step.or_else]
        if step.undo is not None:
            undos.append(step.undo.__name__)
            edges.append(Edge(name, step.undo.__name__, "undo"))
    return Graph(nodes, undos, edges)


def classes_of(record: ProcessRecord | None) -> dict[str, str]:
    """How each step of a process is to be coloured."""
    found: dict[str, str] = {}
    for step in record.steps if record else ():
        found[step.name] = "parked" if step.parked else _CLASSES[step.status]
        if step.compensates is not None and step.status is StepStatus.COMPLETED:
            found[step.compensates] = "undone"
    return found


def mermaid(process: type[Process[Any]], record: ProcessRecord | None = None) -> str:
    """A Mermaid flowchart: solid arrows for what follows, dashed ones for failures and for undoing."""
    graph, classes = graph_of(process), classes_of(record)
    lines = ["flowchart TD", f"    start([{process.process_type}]) --> {process.first_step}"]
    lines += [f"    {name}[{name}]" for name in graph.nodes]
    lines += [f"    {name}>{name}]" for name in graph.undos]
    lines.append("    finish([end])")
    arrows = {"then": "-->", "fork": "==>", "else": "-. else .->", "undo": "-. undo .-"}
    for edge in graph.edges:
        lines.append(f"    {edge.source} {arrows[edge.kind]} {edge.target or 'finish'}")
    for name, (fill, stroke) in _COLOURS.items():
        lines.append(f"    classDef {name} fill:{fill},stroke:{stroke},color:#212529")
    for name in (*graph.nodes, *graph.undos):
        lines.append(f"    class {name} {classes.get(name, 'idle')}")
    return "\n".join(lines) + "\n"


def svg(process: type[Process[Any]], record: ProcessRecord | None = None) -> str:
    """An SVG of its own: steps from top to bottom, those that run at once side by side, and each
    compensation to the right of its step."""
    graph, classes = graph_of(process), classes_of(record)
    places = _layout(graph, process.first_step)
    width = max(x for x, _ in places.values()) + _WIDTH + _MARGIN
    height = max(y for _, y in places.values()) + _HEIGHT + _MARGIN
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="13" role="img">'
        ),
        f"<title>{escape(_title(process, record))}</title>",
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#495057"/></marker></defs>'
        ),
    ]
    parts += [_arrow(edge, places) for edge in graph.edges]
    for name, (x, y) in places.items():
        parts.append(_box(name or "end", x, y, classes.get(name, "idle"), rounded=name == ""))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _title(process: type[Process[Any]], record: ProcessRecord | None) -> str:
    if record is None:
        return process.process_type
    return f"{process.process_type} {record.process_id}: {record.status}"


def _layout(graph: Graph, first: str) -> dict[str, tuple[int, int]]:
    """Rows by the longest way from the first step, without walking in circles."""
    rows = {first: 0}
    order = {name: position for position, name in enumerate(graph.nodes)}
    for name in graph.nodes:
        for edge in graph.edges:
            if edge.source == name and edge.kind != "undo" and name in rows:
                onward = edge.target == "" or order[edge.target] > order[name]
                if onward or edge.target not in rows:
                    rows[edge.target] = max(rows.get(edge.target, 0), rows[name] + 1)
    for name in graph.nodes:
        rows.setdefault(name, max(rows.values()) + 1)
    rows.pop("", None)
    rows[""] = max(rows.values()) + 1
    columns: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    undo_of = {edge.source: edge.target for edge in graph.edges if edge.kind == "undo"}
    for name in sorted(rows, key=lambda name: (rows[name], order.get(name, len(order)))):
        row = rows[name]
        for box in (name, *([undo_of[name]] if name in undo_of else [])):
            if box not in places:
                column = columns.get(row, 0)
                columns[row] = column + 1
                places[box] = (
                    _MARGIN + column * (_WIDTH + _GAP_X),
                    _MARGIN + row * (_HEIGHT + _GAP_Y),
                )
    return places


def _box(name: str, x: int, y: int, kind: str, *, rounded: bool) -> str:
    fill, stroke = _COLOURS[kind]
    label = escape(name if len(name) <= 20 else name[:19] + "…")
    return (
        f'<g class="{kind}"><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'rx="{_HEIGHT // 2 if rounded else 6}" fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>'
        f'<text x="{x + _WIDTH // 2}" y="{y + _HEIGHT // 2 + 5}" text-anchor="middle" '
        f'fill="#212529">{label}</text></g>'
    )


def _arrow(edge: Edge, places: dict[str, tuple[int, int]]) -> str:
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    dashed = ' stroke-dasharray="5 4"' if edge.kind in ("else", "undo") else ""
    if y1 == y2:
        right = x2 > x1
        start = (x1 + (_WIDTH if right else 0), y1 + _HEIGHT // 2)
        stop = (x2 + (0 if right else _WIDTH), y2 + _HEIGHT // 2)
    elif y2 > y1:
        start, stop = (x1 + _WIDTH // 2, y1 + _HEIGHT), (x2 + _WIDTH // 2, y2)
    else:
        start, stop = (x1, y1 + _HEIGHT // 2), (x2, y2 + _HEIGHT // 2)
    middle = (start[1] + stop[1]) // 2
    path = f"M{start[0]} {start[1]}C{start[0]} {middle} {stop[0]} {middle} {stop[0]} {stop[1]}"
    if y1 == y2:
        path = f"M{start[0]} {start[1]}L{stop[0]} {stop[1]}"
    return f'<path d="{path}" fill="none" stroke="#495057" marker-end="url(#tip)"{dashed}/>'
