"""What a handler is given, and what a reader is shown."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar
from uuid import UUID

import msgspec

from commandbus.domain.failure import Failure
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import Duration
from commandbus.domain.priority import Priority
from commandbus.domain.retry import RetryPolicy
from commandbus.domain.unique import Unique

T = TypeVar("T")


class Command(msgspec.Struct, Generic[T], frozen=True):
    """A command as its handler sees it. `data` is the payload, decoded into T when the handler's
    first parameter is annotated `Command[T]`, else plain JSON values."""

    domain: str
    command_type: str
    command_id: UUID
    data: T
    correlation_id: UUID
    causation_id: UUID | None = None
    reply_to: str | None = None
    priority: int = 5
    created_at: datetime | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, Any] = {}


class SendRequest(msgspec.Struct, frozen=True):
    """One command of a bulk send; the fields are the arguments of `send`."""

    domain: str
    command_type: str
    data: Any = None
    command_id: UUID | str | None = None
    correlation_id: UUID | str | None = None
    causation_id: UUID | str | None = None
    reply_to: str | None = None
    priority: Priority | None = None
    delay: Any = None
    due_at: datetime | None = None
    expires_at: datetime | None = None
    max_attempts: int | None = None
    unique_key: str | None = None
    tags: tuple[str, ...] | list[str] = ()
    headers: dict[str, Any] | None = None
    batch_id: UUID | str | None = None
    group_key: str | None = None
    requires: tuple[str, ...] | list[str] = ()
    unique: Unique | None = None
    sender: str | None = None
    retry: Any = None


class SendOptions(TypedDict, total=False):
    """What may be said about a send beside domain, type and data; see `CommandBus.send`."""

    command_id: UUID | str | None
    correlation_id: UUID | str | None
    causation_id: UUID | str | None
    reply_to: str | None
    priority: Priority | None
    delay: Duration | None
    due_at: datetime | None
    expires_at: datetime | None
    max_attempts: int | None
    unique_key: str | None
    tags: Iterable[str]
    headers: dict[str, Any] | None
    batch_id: UUID | str | None
    group_key: str | None
    requires: Iterable[str]
    unique: Unique | None
    sender: str | None
    retry: RetryPolicy | None


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The send is durable. `duplicate` is true when the unique key was taken: then `command_id` is
    that of the command which holds the key, and nothing was added."""

    command_id: UUID
    domain: str
    duplicate: bool = False


class Progress(msgspec.Struct, frozen=True):
    """How far a running command says it is."""

    percent: float
    message: str
    reported_at: datetime


class CommandRecord(msgspec.Struct, frozen=True):
    """Everything the bus knows about a command at one moment."""

    domain: str
    command_type: str
    command_id: UUID
    status: CommandStatus
    data: Any
    correlation_id: UUID
    causation_id: UUID | None
    reply_to: str | None
    priority: int
    attempts: int
    crashes: int
    max_attempts: int | None
    created_at: datetime
    due_at: datetime
    expires_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    result: Any
    error: Failure | None
    reason: str | None
    unique_key: str | None
    tags: tuple[str, ...]
    headers: dict[str, Any]
    progress: Progress | None
    sequence: int
    batch_id: UUID | None = None
    group_key: str | None = None
    requires: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    """What of the stored command cannot be read, and why. `data` and `result` are then `Unreadable`,
    `headers` and `tags` empty; a moment out of range is the first or the last that there is."""

    @property
    def error_code(self) -> str | None:
        return self.error.code if self.error else None

    @property
    def error_message(self) -> str | None:
        return self.error.message if self.error else None
