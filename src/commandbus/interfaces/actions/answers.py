"""The answers of actions, for the API and for `--json` alike."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec import Struct

from commandbus.domain.limits import Limit
from commandbus.domain.schedule import ScheduleRecord
from commandbus.operations.erasure import EraseReport
from commandbus.operations.process_ends import EndProcessResult
from commandbus.operations.queues import PurgeReport
from commandbus.operations.retention import PruneReport


class Done(Struct, frozen=True):
    """What was done, in words."""

    done: str


class Sent(Struct, frozen=True):
    """The new command, or with `duplicate` the one that holds its unique key."""

    command_id: UUID
    domain: str
    duplicate: bool


class Report(Struct, frozen=True):
    """What was done to many commands; with `preview`, how many it would have been. `examples` are the
    newest that matched, where the action knows them. `stopped` before all were done: by the person, or
    by a canary of which `failed` did not complete."""

    matched: int
    done: int
    refused: int
    preview: bool
    examples: list[UUID] = []
    stopped: bool = False
    failed: int = 0
    failed_ids: list[UUID] = []


OTHERS = (EndProcessResult, EraseReport, Limit, PruneReport, PurgeReport, ScheduleRecord)
"""Results of operations that are answered as they are."""
ANSWERS: dict[str, Any] = {kind.__name__: kind for kind in (Done, Sent, *OTHERS)}


def report_of(result: Any, preview: bool) -> Report:
    """The report of an operation on many commands as an answer."""
    examples = [record.command_id for record in getattr(result, "examples", [])]
    return Report(
        result.matched,
        result.done,
        result.refused,
        preview,
        examples,
        result.stopped,
        getattr(result, "failed", 0),
        list(getattr(result, "failed_ids", ())),
    )
