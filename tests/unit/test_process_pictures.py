"""Pictures of processes: text that other programs can read, with every step in it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree as ET

import pytest

from commandbus.domain.process.declaration import END, step
from commandbus.domain.process.picture import graph_of, mermaid, svg
from commandbus.domain.process.values import StepKind
from commandbus.processes import Process, ProcessRecord, ProcessStatus, ProcessStep, StepStatus
from commandbus.sync import SyncCommandBus, SyncProcessManager
from commandbus.testing.sagas import Approved, BookTrip, Choosy, Parallel, Timed, Tour


class Repeated(Process[dict[str, Any]]):
    """Its last step may lead back to the others."""

    @step(then="check")
    def prepare(self, state: dict[str, Any]) -> Any:
        return None

    @step(then="act")
    def check(self, state: dict[str, Any]) -> Any:
        return None

    @step(then=("prepare", "check", END))
    def act(self, state: dict[str, Any]) -> Any:
        return None

    @act.reply
    def choose(self, state: dict[str, Any], reply: Any) -> Any:
        return END


NOW = datetime.now(UTC)
SVG = "{http://www.w3.org/2000/svg}"
each = pytest.mark.parametrize(
    "process",
    [BookTrip, Choosy, Parallel, Timed, Approved, Tour, Repeated],
    ids=lambda p: p.process_type,
)


def boxes(picture: str) -> dict[str | None, str | None]:
    root = ET.fromstring(picture)
    return {group.findtext(f"{SVG}text"): group.get("class") for group in root.iter(f"{SVG}g")}


@each
def test_every_step_and_compensation_is_drawn(process: type[Process[Any]]) -> None:
    undos = {step.undo.__name__ for step in process.steps.values() if step.undo}
    assert set(boxes(svg(process))) == {*process.steps, *undos, "end"}
    text = mermaid(process)
    for name in {*process.steps, *undos}:
        assert f"    class {name} idle" in text


@each
def test_boxes_do_not_lie_on_each_other(process: type[Process[Any]]) -> None:
    root = ET.fromstring(svg(process))
    places = [(rect.get("x"), rect.get("y")) for rect in root.iter(f"{SVG}rect")]
    assert len(places) == len(set(places))
    rows = sorted({int(y or 0) for _, y in places})
    assert len({later - row for row, later in pairwise(rows)}) == 1, "no row is empty"


@each
def test_arrows_begin_and_end_at_the_edges_of_boxes(process: type[Process[Any]]) -> None:
    """Down: from the middle below to the middle above. To the side: between the facing sides. Up: along
    the left sides."""
    root = ET.fromstring(svg(process))
    boxes = [(int(rect.get("x", "")), int(rect.get("y", ""))) for rect in root.iter(f"{SVG}rect")]
    drawn = [path.get("d", "") for path in root.findall(f"{SVG}path")]
    assert len(drawn) == len(graph_of(process).edges)
    below = {(x + 75, y + 40) for x, y in boxes}
    above = {(x + 75, y) for x, y in boxes}
    left, right = {(x, y + 20) for x, y in boxes}, {(x + 150, y + 20) for x, y in boxes}
    for path in drawn:
        numbers = [int(number) for number in re.findall(r"\d+", path)]
        start, stop = (numbers[0], numbers[1]), (numbers[-2], numbers[-1])
        if "L" in path:
            assert start in right
            assert stop in left
        elif stop[1] > start[1]:
            assert start in below
            assert stop in above
        else:
            assert {start, stop} <= left
        if "C" in path:
            middle = (start[1] + stop[1]) // 2
            assert numbers[2:6] == [start[0], middle, stop[0], middle]


@each
def test_steps_follow_each_other_from_top_to_bottom(process: type[Process[Any]]) -> None:
    root = ET.fromstring(svg(process))
    rows = {
        group.findtext(f"{SVG}text"): int(group.findall(f"{SVG}rect")[0].get("y", ""))
        for group in root.iter(f"{SVG}g")
    }
    order = list(process.steps)
    for edge in graph_of(process).edges:
        if edge.kind == "undo":
            assert rows[edge.target] == rows[edge.source]
        elif edge.target == "" or order.index(edge.target) > order.index(edge.source):
            assert rows[edge.target or "end"] > rows[edge.source]
    assert [name for name, row in rows.items() if row == max(rows.values())] == ["end"]
    assert rows[process.first_step] == 20


def test_arrows_say_what_follows() -> None:
    text = mermaid(Choosy)
    for line in ("look --> suite", "look --> room", "look --> finish", "suite -. else .-> room"):
        assert f"    {line}\n" in text
    assert "    begin ==> hotel\n" in mermaid(Parallel)
    assert "    hotel -. undo .- cancel_hotel\n" in mermaid(BookTrip)


@each
def test_ways_of_failures_and_of_undoing_are_dashed(process: type[Process[Any]]) -> None:
    root = ET.fromstring(svg(process))
    arrows = [path for path in root.iter(f"{SVG}path") if path.get("marker-end")]
    dashed = [arrow.get("stroke-dasharray") is not None for arrow in arrows]
    assert dashed == [edge.kind in ("else", "undo") for edge in graph_of(process).edges]


def test_a_process_colours_its_steps() -> None:
    def made(name: str, status: StepStatus, **more: Any) -> ProcessStep:
        fields: dict[str, Any] = {"due_at": None, "compensates": None} | more
        return ProcessStep(name, StepKind.COMMAND, status, uuid4(), "travel", name, **fields)

    steps = [
        made("hotel", StepStatus.COMPLETED),
        made("car", StepStatus.COMPLETED),
        made("pay", StepStatus.FAILED),
        made("cancel_car", StepStatus.COMPLETED, compensates="car"),
        made("cancel_hotel", StepStatus.PENDING, compensates="hotel", parked=True),
    ]
    record = ProcessRecord(
        uuid4(), "book_trip", ProcessStatus.COMPENSATING, {}, steps, None, "book_trip.replies",
        NOW, NOW, None, None, None, None, 5, 1,
    )  # fmt: skip
    drawn = boxes(svg(BookTrip, record))
    assert drawn["hotel"] == "completed"
    assert drawn["car"] == "undone"
    assert drawn["pay"] == "failed"
    assert drawn["cancel_hotel"] == "parked"
    manager = SyncProcessManager(SyncCommandBus("memory://"), BookTrip)
    assert "    class car undone" in manager.draw(record)
    assert manager.draw(record, format="svg") == svg(BookTrip, record)
    with pytest.raises(ValueError, match="mermaid or svg"):
        manager.draw(record, format="png")
