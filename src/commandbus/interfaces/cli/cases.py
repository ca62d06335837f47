"""How cases are shown in lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from commandbus.interfaces.cli.output import Column

if TYPE_CHECKING:
    from uuid import UUID

    from commandbus.domain.command import CommandRecord
    from commandbus.operations.parked_notes import Case


def columns(known: Mapping[tuple[str, UUID], Case]) -> tuple[Column, ...]:
    """What a list of commands shows of their cases, which are known by domain and id."""

    def of(name: str) -> Any:
        return lambda record: getattr(known[record.domain, record.command_id], name) or ""

    def escalated(record: CommandRecord) -> str:
        return "yes" if known[record.domain, record.command_id].escalated_at else ""

    return (
        Column("assignee", of("assignee"), filled=True),
        Column("escalated", escalated, style="red", filled=True),
        Column("comment", of("comment"), wide=True, filled=True),
    )
