"""Replies as commands, made where commands end: by a worker, by the store, by an operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.failure import Failure
from commandbus.domain.ids import new_id
from commandbus.domain.lifecycle import ReplyOutcome
from commandbus.domain.priority import LABELS
from commandbus.domain.reply import REPLY_TYPE, Reply
from commandbus.store.records import NewCommand

_encode = msgspec.json.Encoder().encode


def reply_command(
    reply_to: str,
    *,
    command_id: UUID,
    domain: str,
    command_type: str,
    correlation_id: UUID,
    outcome: ReplyOutcome,
    result: str | None = None,
    failure: Failure | None = None,
    reason: str | None = None,
) -> NewCommand:
    """The command that carries a reply. `result` is JSON text, taken over as it is."""
    reply = Reply(
        command_id,
        domain,
        command_type,
        correlation_id,
        outcome,
        None if result is None else msgspec.Raw(result.encode()),
        failure.code if failure else None,
        failure.message if failure else None,
        failure.details if failure else None,
        reason,
    )
    return follow_up(reply_to, REPLY_TYPE, _encode(reply).decode(), correlation_id, command_id)


def reply_to_expired(
    reply_to: str, *, command_id: UUID, domain: str, command_type: str, correlation_id: UUID
) -> NewCommand:
    """Of a command that was not begun in time."""
    return reply_command(
        reply_to,
        command_id=command_id,
        domain=domain,
        command_type=command_type,
        correlation_id=correlation_id,
        outcome=ReplyOutcome.CANCELED,
        reason="EXPIRED",
    )


def replies_to_expired(commands: Iterable[NewCommand]) -> list[NewCommand]:
    """To the senders that want to know."""
    return [
        reply_to_expired(
            command.reply_to,
            command_id=command.command_id,
            domain=command.domain,
            command_type=command.command_type,
            correlation_id=command.correlation_id,
        )
        for command in commands
        if command.reply_to is not None
    ]


def follow_up(
    domain: str, command_type: str, data: str, correlation_id: UUID, causation_id: UUID, **columns: Any
) -> NewCommand:
    """A command that follows from another one."""
    values: dict[str, Any] = {"command_id": new_id(), "priority": LABELS["normal"]}
    return NewCommand(
        domain=domain,
        command_type=command_type,
        data=data,
        correlation_id=correlation_id,
        causation_id=causation_id,
        **(values | columns),
    )
