"""How cases are shown in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from commandbus.interfaces.cli.output import Column

if TYPE_CHECKING:
    from commandbus.domain.command import CommandRecord
    from commandbus.operations.parked_notes import Case


def columns(records: Sequence[CommandRecord], cases: Sequence[Case]) -> tuple[Column, ...]:
    """What a list of these commands shows of their cases."""
    known = {(r.domain, r.command_id): case for r, case in zip(records, cases, strict=True)}

    def of(name: str) -> Any:
        return lambda record: getattr(known[record.domain, record.command_id], name) or ""

    def escalated(record: CommandRecord) -> str:
        return "yes" if known[record.domain, record.command_id].escalated_at else ""

    return (
        Column("assignee", of("assignee"), filled=True),
        Column("escalated", escalated, style="red", filled=True),
        Column("comment", of("comment"), wide=True, filled=True),
    )
