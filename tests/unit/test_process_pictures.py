"""Pictures of processes: text that other programs can read, with every step in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree as ET

import pytest

from commandbus.domain.process.picture import mermaid, svg
from commandbus.domain.process.values import StepKind
from commandbus.processes import Process, ProcessRecord, ProcessStatus, ProcessStep, StepStatus
from commandbus.sync import SyncCommandBus, SyncProcessManager
from commandbus.testing.sagas import Approved, BookTrip, Choosy, Parallel, Timed, Tour

NOW = datetime.now(UTC)
SVG = "{http://www.w3.org/2000/svg}"
each = pytest.mark.parametrize(
    "process", [BookTrip, Choosy, Parallel, Timed, Approved, Tour], ids=lambda p: p.process_type
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


def test_arrows_say_what_follows() -> None:
    text = mermaid(Choosy)
    for line in ("look --> suite", "look --> room", "look --> finish", "suite -. else .-> room"):
        assert f"    {line}\n" in text
    assert "    begin ==> hotel\n" in mermaid(Parallel)
    assert "    hotel -. undo .- cancel_hotel\n" in mermaid(BookTrip)


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
