"""The checker of sagas is checked: good ones pass, and each kind of mistake is found."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from commandbus.processes import ProcessEvent, ProcessRecord, ProcessStatus
from tests.chaos.sagas import check

NOW = datetime(2030, 1, 1, tzinfo=UTC)
replace = msgspec.structs.replace
COMPLETED = ("reserve", "charge", "ship")


def event(kind: str, step: str | None = None) -> ProcessEvent:
    return ProcessEvent(UUID(int=1), kind, NOW, step, None, {})  # type: ignore[arg-type]


def saga(fails: str | None = None) -> tuple[ProcessRecord, list[ProcessEvent]]:
    """One that was completed, or refused at a step and undone."""
    done = list(COMPLETED if fails is None else COMPLETED[: COMPLETED.index(fails)])
    events = [event("STARTED")]
    for step in done:
        events += [event("STEP_SENT", step), event("STEP_COMPLETED", step)]
    status = ProcessStatus.COMPLETED
    if fails is not None:
        events += [event("STEP_SENT", fails), event("STEP_FAILED", fails)]
        undos = [{"reserve": "release", "charge": "refund"}[step] for step in reversed(done)]
        events += [event("COMPENSATION_COMPLETED", undo) for undo in undos]
        status = ProcessStatus.COMPENSATED if undos else ProcessStatus.FAILED
    state: dict[str, Any] = {"number": 1, "fails": fails, "parks": None, "done": done}
    return record(state, status), events


def record(state: dict[str, Any], status: ProcessStatus) -> ProcessRecord:
    fields: dict[str, Any] = dict.fromkeys(ProcessRecord.__struct_fields__)
    return ProcessRecord(**fields | {"state": state, "status": status, "steps": ()})


@pytest.mark.parametrize("fails", [None, "reserve", "charge", "ship"])
def test_a_good_saga_passes(fails: str | None) -> None:
    assert list(check(*saga(fails))) == []


Spoil = Callable[[ProcessRecord, list[ProcessEvent]], ProcessRecord | None]


def twice(kind: str) -> Spoil:
    def spoil(_: ProcessRecord, events: list[ProcessEvent]) -> None:
        events.append(next(e for e in events if e.event_type == kind))

    return spoil


def a_step_is_missing(_: ProcessRecord, events: list[ProcessEvent]) -> None:
    events[:] = [e for e in events if (e.event_type, e.step) != ("STEP_COMPLETED", "charge")]


def the_wrong_order(_: ProcessRecord, events: list[ProcessEvent]) -> None:
    events.reverse()


def a_reply_is_ignored(_: ProcessRecord, events: list[ProcessEvent]) -> None:
    events.append(event("REPLY_IGNORED", "ship"))


def it_has_not_ended(record: ProcessRecord, _: list[ProcessEvent]) -> ProcessRecord:
    return replace(record, status=ProcessStatus.RUNNING)


def it_ended_otherwise(record: ProcessRecord, _: list[ProcessEvent]) -> ProcessRecord:
    return replace(record, status=ProcessStatus.CANCELED)


def a_reply_is_noted_twice(record: ProcessRecord, _: list[ProcessEvent]) -> ProcessRecord:
    return replace(record, state=record.state | {"done": [*record.state["done"], "reserve"]})


SPOILS: dict[str, Spoil] = {
    "a step is sent twice": twice("STEP_SENT"),
    "a reply is consumed twice": twice("STEP_COMPLETED"),
    "a compensation runs twice": twice("COMPENSATION_COMPLETED"),
} | {
    spoil.__name__: spoil
    for spoil in (
        a_step_is_missing,
        the_wrong_order,
        a_reply_is_ignored,
        it_has_not_ended,
        it_ended_otherwise,
        a_reply_is_noted_twice,
    )
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_a_bad_saga_is_found_with_a_witness(spoil: Spoil) -> None:
    good, events = saga("ship")
    found = list(check(spoil(good, events) or good, events))
    assert found
    assert all(violation.promise == "P13" and violation.witness for violation in found)
