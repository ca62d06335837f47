"""Schedules: when a command is to be sent, again and again.

Pure: a schedule computes its occurrences. operations/schedules.py sends exactly one command for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID, uuid5

import msgspec

from commandbus.domain import payload
from commandbus.domain.command import SendOptions, SendRequest, TypedRequest
from commandbus.domain.ids import as_optional_id
from commandbus.domain.moment import as_seconds
from commandbus.domain.names import as_name, as_text
from commandbus.domain.retry import header_of, policy_of
from commandbus.domain.unique import Unique
from commandbus.errors import ConfigurationError

if TYPE_CHECKING:
    _Request = SendRequest[Any]
else:
    _Request = Any  # no document has one, and msgspec could not decode it

_LOOKBACKS = (timedelta(minutes=5), timedelta(days=1), timedelta(days=366), timedelta(days=3660))
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


class Misfire(StrEnum):
    """What happens to occurrences that passed while no worker ran."""

    SKIP = "skip"
    """They are dropped."""
    ONCE = "once"
    """One command stands for all of them, with the newest occurrence."""
    ALL = "all"
    """Each gets its command."""


_OF_ONE_COMMAND = {
    "command_id": "every occurrence has an id of its own",
    "idempotency_key": "every occurrence has an id of its own",
    "due_at": "give delay, which counts from the occurrence",
    "expires_at": "give expires, which counts from when a command is due",
    "batch_id": "a batch ends, and a schedule does not",
    "sender": "workers send the commands of a schedule",
}
"""Options of a request that its repetitions cannot share, and why."""


class ScheduledOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of a schedule's commands, beside their priority: those of the request, as JSON."""

    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    reply_to: str | None = None
    delay: float | None = None
    expires: float | None = None
    max_attempts: int | None = None
    unique_key: str | None = None
    unique: dict[str, Any] | None = None
    group_key: str | None = None
    tags: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    headers: dict[str, Any] | None = None
    retry: dict[str, Any] | None = None

    @classmethod
    def of(cls, request: SendRequest[Any], name: str) -> ScheduledOptions:
        """Raises ConfigurationError for options that are of one command."""
        kept = {*cls.__struct_fields__, "priority"}
        for option in SendOptions.__annotations__:
            if option not in kept and getattr(request, option) is not None:
                why = _OF_ONE_COMMAND.get(option, "a schedule does not keep it")
                raise ConfigurationError(
                    f"The request of schedule {name!r} has {option}: {why}. Remove it with "
                    f".options({option}=None)."
                )
        unique, retry = request.unique, request.retry
        return cls(
            as_optional_id(request.correlation_id, "correlation_id"),
            as_optional_id(request.causation_id, "causation_id"),
            request.reply_to,
            None if request.delay is None else as_seconds(request.delay, "delay"),
            None if request.expires is None else as_seconds(request.expires, "expires"),
            request.max_attempts,
            request.unique_key,
            None if unique is None else msgspec.to_builtins(unique.checked(request.unique_key)),
            request.group_key,
            tuple(request.tags),
            tuple(request.requires),
            request.headers,
            None if retry is None else header_of(retry) | {"max_attempts": retry.max_attempts},
        )

    def apply(self, request: SendRequest[Any]) -> SendRequest[Any]:
        """The request of an occurrence, with these options."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        given["headers"] = (self.headers or {}) | (request.headers or {})
        given["retry"] = None if self.retry is None else policy_of(self.retry)
        given["unique"] = None if self.unique is None else Unique(**self.unique)
        return msgspec.structs.replace(request, **given)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Send a command at every occurrence: `cron` (five fields, in `timezone`, daylight saving as
    Debian's cron does) or `every` so many seconds, counted from a fixed beginning.

    The command is a `request`, such as a call of a typed command makes, or a `domain` and a
    `command_type` with `data`. The schedule takes these fields, the priority and all other options
    from the request, whose delay and expiry count from each occurrence; `request` itself is None
    afterwards.
    Raises ConfigurationError for both, for neither, and for options that only one command can have.
    """

    name: str
    domain: str = ""
    command_type: str = ""
    data: Any = None
    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"
    misfire: Misfire = Misfire.ONCE
    priority: str | int | None = None
    enabled: bool = True
    overlap: Literal["allow", "skip"] = "allow"
    """With "skip" an occurrence is left out while the command of an earlier one has not ended."""
    options: ScheduledOptions | None = None
    """What the request said beside the priority."""
    request: _Request | None = None

    def __post_init__(self) -> None:
        request: Any = self.request
        if request is None:
            if not (self.domain and self.command_type):
                raise ConfigurationError(
                    f"Schedule {self.name!r} needs either request or domain and command_type."
                )
            return
        if not isinstance(request, SendRequest):
            raise ConfigurationError(
                f"request of schedule {self.name!r} must be a request, such as charge(order=7), not "
                f"{request!r}."
            )
        if self.domain or self.command_type or self.data is not None:
            raise ConfigurationError(
                f"Schedule {self.name!r} has a request, which has its domain, command_type and data; "
                "leave these out."
            )
        options = ScheduledOptions.of(request, self.name)
        typed = request if isinstance(request, TypedRequest) else None
        taken = {
            "domain": request.domain,
            "command_type": request.command_type,
            "data": payload.decode(typed.text) if typed else request.data,
            "priority": request.priority if self.priority is None else self.priority,
            "options": None if options == ScheduledOptions() else options,
            "request": None,
        }
        for field, value in taken.items():
            msgspec.structs.force_setattr(self, field, value)

    def checked(self) -> Schedule:
        """Itself, or ConfigurationError that says what is wrong with it."""
        as_name(self.name, "schedule")
        if (self.cron is None) == (self.every is None):
            raise ConfigurationError(f"Schedule {self.name!r} needs either cron or every.")
        if self.every is not None and not 1 <= as_seconds(self.every, "every") <= 366 * 86_400:
            raise ConfigurationError(f"every must be between 1 second and a year, not {self.every!r}.")
        for given, name in ((self.cron, "cron"), (self.timezone, "timezone")):
            if given is not None:
                as_text(given, name)
        _zone(self.timezone)
        try:
            Misfire(self.misfire)
        except ValueError:
            known = ", ".join(Misfire)
            raise ConfigurationError(f"misfire must be one of {known}, not {self.misfire!r}.") from None
        if self.overlap not in ("allow", "skip"):
            raise ConfigurationError(f"overlap must be allow or skip, not {self.overlap!r}.")
        if self.overlap == "skip" and self.options is not None and self.options.unique_key is not None:
            raise ConfigurationError(
                f'Schedule {self.name!r} has overlap="skip", which is a unique key of its own, and a '
                "request with unique_key; leave one of them out."
            )
        next(self.occurrences_after(_BEGINNING))
        return self

    @property
    def unique_key(self) -> str | None:
        """What keeps its commands from overlapping."""
        return f"schedule:{self.name}" if self.overlap == "skip" else None

    def request_at(self, at: datetime | None = None, seed: UUID | None = None) -> SendRequest[Any]:
        """The request of the occurrence at a moment, or without one of a command beside them."""
        request: SendRequest[Any] = SendRequest(
            self.domain,
            self.command_type,
            self.data,
            command_id=None if at is None or seed is None else self.command_id(at, seed),
            priority=self.priority,
            headers={"schedule": self.name} | ({"occurrence": at.isoformat()} if at else {}),
        )
        if self.options is not None:
            request = self.options.apply(request)
        return request if self.overlap == "allow" else request.options(unique_key=self.unique_key)

    def occurrences_after(self, moment: datetime) -> Iterator[datetime]:
        """The occurrences after a moment, in order, in UTC."""
        if self.every is not None:
            step = timedelta(seconds=self.every)
            occurrence = _BEGINNING + step * ((moment - _BEGINNING) // step + 1)
            while True:
                yield occurrence
                occurrence += step
        # Here, because every program that opens a bus would pay for calendars.
        from cronsim import CronSim, CronSimError

        local = moment.astimezone(_zone(self.timezone))
        try:
            for found in CronSim(self.cron or "", local):
                occurrence = found.astimezone(UTC)
                # During a DST change, the library begins with the first of two equal local times.
                if occurrence > moment:
                    yield occurrence
        except CronSimError as error:
            raise ConfigurationError(
                f"{self.cron!r} is not a cron expression: {error}. Write five fields: minute, hour, "
                "day of month, month, day of week."
            ) from None

    def newest_occurrence(self, first: datetime, moment: datetime) -> datetime:
        """The last occurrence that is not after a moment, given one that is not. Searched backwards in
        growing steps, because years of occurrences may lie between."""
        for lookback in _LOOKBACKS:
            newest = None
            for occurrence in self.occurrences_after(max(first, moment - lookback)):
                if occurrence > moment:
                    break
                newest = occurrence
            if newest is not None:
                return newest
        return first

    def command_id(self, at: datetime, seed: UUID) -> UUID:
        """The id of the command of an occurrence: equal in every process that has the seed. A program
        that only sends cannot compute it, and so cannot take the id before the bus sends."""
        return uuid5(seed, f"{self.domain}|{self.name}|{at.isoformat()}")


class ScheduleRecord(msgspec.Struct, frozen=True):
    """A schedule and how it is doing."""

    schedule: Schedule
    next_run: datetime | None
    last_run: datetime | None
    last_command_id: UUID | None


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"Unknown time zone {name!r}; use a name such as Europe/Berlin (systems without zone data "
            "need the package tzdata)."
        ) from None
