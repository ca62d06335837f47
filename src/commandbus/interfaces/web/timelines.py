"""The timeline of a process as a Gantt chart: a row for each run of a step, with the time that its
command waited, ran, waited for the next attempt, or was parked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from markupsafe import Markup

from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.process.values import ProcessEvent, ProcessRecord, ProcessStep
from commandbus.interfaces.web.charts import CLOCK_STEPS, seconds

WIDTH, ROW, BAR, TOP, RIGHT = 820, 26, 12, 24, 60
NAME_MAX, CHARACTER = 24, 9.0
"""The longest name of a step that is shown whole, and room for a character, also of a wide font."""
TICKS_MAX = 6
SMALL_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
ENDS = {
    AuditEventType.COMPLETED: "completed",
    AuditEventType.FAILED: "failed",
    AuditEventType.BUSINESS_RULE_FAILED: "failed",
    AuditEventType.RETRY_SCHEDULED: "failed",
    AuditEventType.RELEASED: "canceled",
    AuditEventType.WORKER_LOST: "failed",
    AuditEventType.MOVED_TO_TSQ: "failed",
    AuditEventType.CANCELED: "canceled",
    AuditEventType.EXPIRED: "canceled",
    AuditEventType.OPERATOR_CANCEL: "canceled",
    AuditEventType.OPERATOR_COMPLETE: "completed",
}
"""What ends an attempt, and its colour."""
FINAL = (
    AuditEventType.COMPLETED,
    AuditEventType.BUSINESS_RULE_FAILED,
    AuditEventType.CANCELED,
    AuditEventType.EXPIRED,
    AuditEventType.OPERATOR_CANCEL,
    AuditEventType.OPERATOR_COMPLETE,
)


class Segment(msgspec.Struct, frozen=True):
    """A stretch of time; `kind` is its colour."""

    kind: str
    begin: datetime
    end: datetime
    text: str


def segments_of(trail: Sequence[AuditEvent], now: datetime) -> list[Segment]:
    """What a command did when: waits and attempts in order."""
    found: list[Segment] = []
    kind, begin, text, attempt = "waits", now, "waits", 0
    for event in trail:
        at = event.timestamp
        if event.event_type is AuditEventType.SENT:
            begin = at
        elif event.event_type is AuditEventType.RECEIVED:
            found.append(Segment(kind, begin, at, text))
            attempt += 1
            kind, begin, text = "running", at, f"attempt {attempt} runs"
        elif event.event_type in ENDS:
            if kind == "running":
                found.append(Segment(ENDS[event.event_type], begin, at, f"attempt {attempt}"))
            elif event.event_type is not AuditEventType.RETRY_SCHEDULED:
                found.append(Segment(kind, begin, at, text))
            if event.event_type in FINAL:
                return found
            kind, begin, text = "waits", at, f"waits for attempt {attempt + 1}"
            if event.event_type is AuditEventType.MOVED_TO_TSQ:
                kind, text = "parked", "parked"
        elif event.event_type is AuditEventType.OPERATOR_RETRY:
            found.append(Segment(kind, begin, at, text))
            kind, begin, text = "waits", at, "waits, retried by hand"
    if not trail or trail[-1].event_type is AuditEventType.FAILED:
        return found
    return [*found, Segment(kind, begin, now, text)]


def waits_of(step: ProcessStep, events: Sequence[ProcessEvent], now: datetime) -> list[Segment]:
    """A step without a command: from its begin to its end by the events of the process."""
    own = [event for event in events if event.command_id == step.command_id]
    if not own:
        own = [event for event in events if event.step == step.name]
    if not own:
        return []
    end = own[-1].timestamp if step.status != "PENDING" else now
    kind = "waits" if step.status == "PENDING" else "completed"
    return [Segment(kind, own[0].timestamp, end, f"waits for {step.domain or step.name}")]


def draw_timeline(
    record: ProcessRecord,
    events: Sequence[ProcessEvent],
    trails: Mapping[UUID, Sequence[AuditEvent]],
    now: datetime,
) -> Markup:
    """An SVG with a row for each run; empty for a process without any."""
    rows = [
        (step, segments_of(trails[step.command_id], now))
        if trails.get(step.command_id)
        else (step, waits_of(step, events, now))
        for step in record.steps
    ]
    ends = [segment.end for _, segments in rows for segment in segments]
    if not ends:
        return Markup("")
    end = record.finished_at or max(ends)
    length = max((max([end, *ends]) - record.created_at).total_seconds(), 0.001)
    height = TOP + len(rows) * ROW + 4
    names = [_name(step) for step, _ in rows]
    label = round(max(map(len, names)) * CHARACTER) + 14

    def x(moment: datetime) -> float:
        share = max(0.0, (moment - record.created_at).total_seconds()) / length
        return label + share * (WIDTH - label - RIGHT)

    parts = _axis(length, height, label)
    for index, (_, segments) in enumerate(rows):
        y = TOP + index * ROW
        parts.append(
            Markup('<text class="name" x="{}" y="{}" text-anchor="end">{}</text>').format(
                label - 10, y + BAR, names[index]
            )
        )
        parts += [_bar(segment, x(segment.begin), x(segment.end), y) for segment in segments]
        if segments:
            took = (segments[-1].end - segments[0].begin).total_seconds()
            parts.append(
                Markup('<text class="took" x="{:.1f}" y="{}">{}</text>').format(
                    x(segments[-1].end) + 6, y + BAR, seconds(took)
                )
            )
    return Markup(
        '<svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" class="gantt" role="img" '
        'aria-label="{title}">{parts}</svg>'
    ).format(
        w=WIDTH, h=height, title=f"When each step waited and ran, over {seconds(length)}",
        parts=Markup("").join(parts),
    )  # fmt: skip


def _axis(length: float, height: int, label: int) -> list[Markup]:
    steps = (*SMALL_STEPS, *CLOCK_STEPS)
    step = next((one for one in steps if length / one <= TICKS_MAX), length / TICKS_MAX)
    found: list[Markup] = []
    for index in range(int(length / step) + 1):
        at = label + index * step / length * (WIDTH - label - RIGHT)
        found.append(
            Markup(
                '<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{low}"/>'
                '<text class="tick" x="{x:.1f}" y="12" text-anchor="middle">{text}</text>'
            ).format(x=at, top=TOP - 6, low=height, text=seconds(index * step))
        )
    return found


def _name(step: ProcessStep) -> str:
    name = f"↩ {step.name}" if step.compensates else step.name
    return name if len(name) <= NAME_MAX else name[: NAME_MAX - 1] + "…"


def _bar(segment: Segment, left: float, right: float, y: float) -> Markup:
    took = seconds((segment.end - segment.begin).total_seconds())
    return Markup(
        '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}" rx="2"><title>{}</title></rect>'
    ).format(segment.kind, left, y + 1, max(1.5, right - left), BAR, f"{segment.text}: {took}")
