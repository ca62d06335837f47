"""Commands: requests to send one, what a handler receives, and records of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, Unpack
from uuid import UUID

import msgspec

from commandbus.domain.failure import Failure
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import Duration
from commandbus.domain.priority import Priority
from commandbus.domain.retry import RetryPolicy
from commandbus.domain.shown import Named, shows_options
from commandbus.domain.unique import Unique
from commandbus.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from commandbus.domain.contract import CommandType

    R = TypeVar("R", default=Any)
    """The type of the result of a command; any JSON where it is not declared."""
    R_co = TypeVar("R_co", default=Any, covariant=True)
    """The same of a request, so that requests of different results may be in one list."""
else:
    from typing import TypeVar

    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)

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


class SendOptions(TypedDict, total=False):
    """What a send may say beside domain, type and payload; see `CommandBus.send`."""

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
    idempotency_key: str | None
    expires: Duration | None


class SendRequest(msgspec.Struct, Generic[R_co], frozen=True, gc=False, repr_omit_defaults=True):
    """A command that is to be sent, as a value; the fields are the arguments of `send`. R_co is the
    type of its result. Calling a typed command makes one."""

    domain: str
    command_type: str
    data: Any = None
    command_id: UUID | str | None = None
    correlation_id: UUID | str | None = None
    causation_id: UUID | str | None = None
    reply_to: str | None = None
    priority: Priority | None = None
    delay: Duration | None = None
    due_at: datetime | None = None
    expires_at: datetime | None = None
    max_attempts: int | None = None
    unique_key: str | None = None
    tags: Iterable[str] = ()
    headers: dict[str, Any] | None = None
    batch_id: UUID | str | None = None
    group_key: str | None = None
    requires: Iterable[str] = ()
    unique: Unique | None = None
    sender: str | None = None
    retry: RetryPolicy | None = None
    idempotency_key: str | None = None
    expires: Duration | None = None

    def __post_init__(self) -> None:
        # A request may be used several times, and an iterator only once.
        if self.tags.__class__ is not tuple:
            msgspec.structs.force_setattr(self, "tags", _as_tuple(self.tags, "tags"))
        if self.requires.__class__ is not tuple:
            msgspec.structs.force_setattr(self, "requires", _as_tuple(self.requires, "requires"))

    @shows_options(dict.fromkeys(SendOptions.__annotations__, Named("UNCHANGED")))
    def options(self, **options: Unpack[SendOptions]) -> Self:
        """A copy with other options, such as `delay` or `priority`: those of `send`."""
        for name in options:
            if name not in SendOptions.__annotations__:
                raise TypeError(f"options() got an unexpected keyword argument {name!r}")
        if options.get("expires_at") is not None:
            options.setdefault("expires", None)  # it replaces the other one
        elif options.get("expires") is not None:
            options.setdefault("expires_at", None)
        return msgspec.structs.replace(self, **options)


SEND_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(SendRequest)
    if field.default is not msgspec.NODEFAULT
}
"""What `send` takes for options that are not given."""


def _as_tuple(texts: Any, what: str) -> tuple[str, ...]:
    if texts is None:
        return ()
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InvalidArgumentError(f"{what} must be a list of texts, not {texts!r}.")
    return tuple(texts)


class TypedRequest(SendRequest[R], frozen=True, gc=False, kw_only=True):
    """A request of a typed command. Its payload was checked and encoded when it was made."""

    contract: CommandType[..., R]
    text: str
    """The payload as JSON text: `data` as it was when the request was made."""

    def __repr__(self) -> str:
        options = (f", {n}={v!r}" for n in SendOptions.__annotations__ if (v := getattr(self, n)))
        return f"{self.domain}.{self.command_type}({self.data!r}{''.join(options)})"


def as_request(
    domain: str | SendRequest[R], command_type: str | None, data: Any, options: SendOptions
) -> SendRequest[R]:
    """The arguments of a send as one value."""
    if not isinstance(domain, SendRequest):
        return SendRequest(domain, command_type, data, **options)  # type: ignore[arg-type]
    if command_type is not None or data is not None:
        raise TypeError("A request has its command type and its payload; give the options by name.")
    return domain.options(**options) if options else domain


class SendResult(msgspec.Struct, Generic[R], frozen=True, gc=False, repr_omit_defaults=True):
    """The send is durable. `duplicate` is true when the unique key was taken: then `command_id` is
    that of the command which holds the key, and nothing was added."""

    command_id: UUID
    domain: str
    duplicate: bool = False
    contract: CommandType[..., R] | None = None
    """How the result is decoded, when a typed command was sent."""


class Progress(msgspec.Struct, frozen=True):
    """How far a running command says it is."""

    percent: float
    message: str
    reported_at: datetime


class CommandRecord(msgspec.Struct, Generic[R], frozen=True):
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
    result: R | None
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


CommandRef = UUID | str | SendResult[Any] | CommandRecord[Any]
"""A command: its id, what its send returned, or its record."""
