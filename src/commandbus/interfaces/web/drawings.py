"""The drawing of a process: its steps from left to right as they were begun, and below each what undid
it. Colours are the page's, so a drawing is readable in light and dark."""

from __future__ import annotations

from markupsafe import Markup

from commandbus.domain.process.values import ProcessRecord, ProcessStep, StepStatus

WIDTH, HEIGHT, GAP, BELOW, MARGIN = 132, 44, 30, 34, 4
KINDS = {
    StepStatus.PENDING: "running",
    StepStatus.COMPLETED: "completed",
    StepStatus.FAILED: "failed",
    StepStatus.CANCELED: "canceled",
    StepStatus.TIMED_OUT: "failed",
    StepStatus.SKIPPED: "pending",
}
LETTERS = 17


def draw_process(record: ProcessRecord) -> Markup:
    """An SVG of the runs of a process; empty before its first step."""
    forward = [step for step in record.steps if step.compensates is None]
    undoing = [step for step in record.steps if step.compensates is not None]
    if not forward:
        return Markup("")
    places = {step.name: index for index, step in enumerate(forward)}
    parts: list[Markup] = []
    for index, step in enumerate(forward):
        x = MARGIN + index * (WIDTH + GAP)
        if index:
            parts.append(_arrow(x - GAP, MARGIN + HEIGHT / 2, x, MARGIN + HEIGHT / 2))
        parts.append(_box(step, x, MARGIN))
    for step in undoing:
        x = MARGIN + places.get(step.compensates or "", 0) * (WIDTH + GAP)
        y = MARGIN + HEIGHT + BELOW
        parts.append(_arrow(x + WIDTH / 2, MARGIN + HEIGHT, x + WIDTH / 2, y, dashed=True))
        parts.append(_box(step, x, y))
    width = 2 * MARGIN + len(forward) * (WIDTH + GAP) - GAP
    height = 2 * MARGIN + HEIGHT + (BELOW + HEIGHT if undoing else 0)
    return Markup(
        '<svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" class="drawing" role="img" '
        'aria-label="{title}">{parts}</svg>'
    ).format(
        w=width,
        h=height,
        title=f"{record.process_type}: " + ", ".join(f"{s.name} {s.status}" for s in record.steps),
        parts=Markup("").join(parts),
    )


def _box(step: ProcessStep, x: float, y: float) -> Markup:
    kind = "parked" if step.parked else KINDS[step.status]
    name = step.name if len(step.name) <= LETTERS else step.name[: LETTERS - 1] + "…"
    word = "parked" if step.parked else str(step.status).replace("_", " ").lower()
    return Markup(
        '<g class="{kind}"><title>{title}</title>'
        '<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7"/>'
        '<text x="{tx}" y="{ty}" class="name">{name}</text>'
        '<text x="{tx}" y="{wy}" class="word">{word}</text></g>'
    ).format(
        kind=kind,
        title=f"{step.name}: {step.domain} {step.command_type} {word}",
        x=x,
        y=y,
        w=WIDTH,
        h=HEIGHT,
        tx=x + WIDTH / 2,
        ty=y + 19,
        wy=y + 34,
        name=name,
        word=word,
    )


def _arrow(x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> Markup:
    across = y1 == y2
    tip = f"{x2 - 6},{y2 - 4} {x2},{y2} {x2 - 6},{y2 + 4}"
    if not across:
        tip = f"{x2 - 4},{y2 - 6} {x2},{y2} {x2 + 4},{y2 - 6}"
    return Markup(
        '<line class="way{}" x1="{}" y1="{}" x2="{}" y2="{}"/><polygon class="tip" points="{}"/>'
    ).format(" undo" if dashed else "", x1, y1, x2, y2, tip)
