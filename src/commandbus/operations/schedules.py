"""Schedules: kept in the store, and exactly one command per occurrence from a fleet of any size.

A schedule is a document whose due time is its next occurrence. The worker that finds it due moves it to
the following occurrence and sends, in one transaction that only one process can win. After a crash
before the commit the occurrence is still due, and another worker sends it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, TypedDict, Unpack
from uuid import UUID

import msgspec

from commandbus.domain.command import SendResult
from commandbus.domain.moment import SECOND, as_datetime, as_microseconds
from commandbus.domain.names import as_name, as_reason
from commandbus.domain.page import Page
from commandbus.domain.schedule import Misfire, Schedule, ScheduleRecord
from commandbus.errors import (
    CommandBusError,
    ConfigurationError,
    InvalidArgumentError,
    InvalidOperationError,
    NotFoundError,
    UniqueKeyHeld,
)
from commandbus.operations.actions import record_action
from commandbus.operations.commands import reply_to_sender
from commandbus.operations.pages import list_named
from commandbus.operations.scope import Scope
from commandbus.operations.sending import encode_request
from commandbus.operations.uniqueness import insert_unique
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op
from commandbus.store.records import Capacity, Inserted, NewCommand

logger = logging.getLogger("commandbus.schedules")

KIND = "schedule"
TOPIC = "commandbus.schedules"
"""Woken when schedules change, so that schedulers of this process look at once."""
GRACE = 60 * SECOND
"""An occurrence that is later than this was missed, and the misfire policy applies."""
CATCH_UP_MAX = 1_000
"""Occurrences sent in one go by Misfire.ALL."""
LEFT_SECONDS = 1.0
"""When to look again while a schedule is due that this process cannot tell the time of."""


class _Body(msgspec.Struct):
    schedule: Schedule
    seed: UUID
    """What the ids of its commands are made from; a new one for a schedule that is created again."""
    last_run: int | None = None
    last_command_id: UUID | None = None


class ScheduleFields(TypedDict, total=False):
    """The fields of a Schedule beside its name."""

    domain: str
    command_type: str
    data: Any
    cron: str | None
    every: float | None
    timezone: str
    misfire: Misfire
    priority: str | int | None
    enabled: bool
    overlap: Literal["allow", "skip"]


class TickReport(msgspec.Struct, frozen=True):
    sent: int
    next_due_in: float | None
    """Seconds until the next occurrence of any schedule."""


_decoder = msgspec.json.Decoder(_Body)


def put_schedule(scope: Scope, schedule: Schedule, *, reason: str | None = None) -> Op[ScheduleRecord]:
    """Create a schedule or replace the one with its name. Its first occurrence is the next one from
    now; replacing with the same times keeps the planned occurrence. Raises ConfigurationError."""
    if not isinstance(schedule, Schedule):
        raise InvalidArgumentError(f"put_schedule takes a Schedule, not {schedule!r}.")
    schedule.checked()
    encode_request(scope, schedule.request_at())
    return _put(scope, schedule, as_reason(reason))


def _put(scope: Scope, schedule: Schedule, reason: str | None) -> Op[ScheduleRecord]:
    record, is_new = yield from store_schedule(scope, schedule)
    if is_new:
        yield from record_action(scope, "put_schedule", schedule.name, reason)
    return record


def store_schedule(scope: Scope, schedule: Schedule) -> Op[tuple[ScheduleRecord, bool]]:
    """Write a checked schedule, without a record of it; whether that changed anything."""
    while True:
        present = yield from scope.store.get_document(KIND, schedule.name)
        body, is_same = _Body(schedule, scope.new_id()), False
        due_at: int | None = None
        for before in readable([present] if present else [], lambda d: _decoder.decode(d.body)):
            body = msgspec.structs.replace(before, schedule=schedule)
            if _times(before.schedule) == _times(schedule):
                due_at = present.due_at if present else None
            is_same = msgspec.json.encode(before.schedule) == msgspec.json.encode(schedule)
        if is_same and (due_at is not None or not schedule.enabled):
            return _record(body, due_at), False
        if schedule.enabled and due_at is None:
            due_at = yield from _next_from_now(scope, schedule)
        if not schedule.enabled:
            due_at = None
        # An occurrence that is sent meanwhile makes it another version.
        if (yield from _write(scope, body, due_at, present.version if present else 0)):
            yield from scope.store.announce(TOPIC)
            return _record(body, due_at), True


def add_schedule(
    scope: Scope,
    name: str,
    *,
    replace: bool = False,
    reason: str | None = None,
    **fields: Unpack[ScheduleFields],
) -> Op[ScheduleRecord]:
    """Create the schedule of these fields; with `replace`, also in place of one with its name. Raises
    ConfigurationError, and InvalidOperationError when there is one already."""
    schedule = Schedule(name=name, **fields)
    present = None if replace else (yield from scope.store.get_document(KIND, schedule.name))
    if present is not None:
        raise InvalidOperationError(
            f"There is a schedule {name!r} already; edit it, or replace it with replace (--replace)."
        )
    return (yield from put_schedule(scope, schedule, reason=reason))


def edit_schedule(
    scope: Scope, name: str, *, reason: str | None = None, **changes: Unpack[ScheduleFields]
) -> Op[ScheduleRecord]:
    """Change these fields of a schedule; the others stay. `cron` replaces `every`, and `every` replaces
    `cron`. Raises ConfigurationError, and NotFoundError."""
    body, _ = yield from _require(scope, name)
    given: dict[str, Any] = dict(changes)
    if len({"cron", "every"} & given.keys()) == 1:
        given = {"cron": None, "every": None} | given
    edited = msgspec.structs.replace(body.schedule, **given)
    return (yield from put_schedule(scope, edited, reason=reason))


def get_schedule(scope: Scope, name: str) -> Op[ScheduleRecord | None]:
    """A schedule with its next and last run, or None."""
    document = yield from scope.store.get_document(KIND, as_name(name, "schedule"))
    return None if document is None else _record(_decoder.decode(document.body), document.due_at)


def list_schedules(
    scope: Scope, *, after: str | None = None, limit: int | None = None
) -> Op[Page[ScheduleRecord]]:
    """The schedules by name, with their next and last runs: all, or with `limit` a page at a time."""

    def read(documents: Sequence[Document]) -> list[ScheduleRecord]:
        return readable(documents, lambda d: _record(_decoder.decode(d.body), d.due_at))

    return (yield from list_named(scope, KIND, read, after, limit))


def enable_schedule(scope: Scope, name: str, *, reason: str | None = None) -> Op[ScheduleRecord]:
    """Let a schedule send again, from its next occurrence on. Raises NotFoundError."""
    return (yield from _switch(scope, name, True, as_reason(reason)))


def disable_schedule(scope: Scope, name: str, *, reason: str | None = None) -> Op[ScheduleRecord]:
    """Stop a schedule; it stays in the list and sends nothing until it is enabled. Raises
    NotFoundError."""
    return (yield from _switch(scope, name, False, as_reason(reason)))


def delete_schedule(scope: Scope, name: str, *, reason: str | None = None) -> Op[bool]:
    """Forget a schedule; False when there was none."""
    because = as_reason(reason)
    was_there = yield from scope.store.delete_document(KIND, as_name(name, "schedule"))
    if was_there:
        yield from record_action(scope, "delete_schedule", name, because)
    return was_there


def trigger_schedule(scope: Scope, name: str, *, reason: str | None = None) -> Op[SendResult]:
    """Send a schedule's command now, beside its occurrences. With overlap="skip", while a command of
    the schedule has not ended, nothing is sent: the result names that command and says `duplicate`."""
    because = as_reason(reason)
    body, _ = yield from _require(scope, name)
    command = encode_request(scope, body.schedule.request_at())
    inserted = yield from _insert(scope, body.schedule, [command])
    if not inserted[0].duplicate:
        yield from record_action(scope, "trigger_schedule", name, because)
    return SendResult(inserted[0].command_id, command.domain, inserted[0].duplicate)


def tick(scope: Scope) -> Op[TickReport]:
    """Send the commands of all due schedules. Any process may repeat this at any time."""
    now = yield from scope.store.now()
    sent, soonest = 0, 0.0
    for document in (yield from scope.store.due_documents(KIND)):
        fired = yield from _fire(scope, document, now)
        if fired is None:
            soonest = LEFT_SECONDS
        else:
            sent += fired
    following = yield from scope.store.next_document_due(KIND)
    due_in = None if following is None else max(soonest, (following - now) / SECOND)
    return TickReport(sent, due_in)


def _fire(scope: Scope, document: Document, now: int) -> Op[int | None]:
    """How many commands were sent; None when the occurrence is left to other processes."""
    bodies = readable([document], lambda d: _decoder.decode(d.body))
    if not bodies:  # no longer due, or every look would be for it
        yield from scope.store.put_document(msgspec.structs.replace(document, due_at=None))
        return 0
    body = bodies[0]
    schedule = body.schedule
    try:
        occurrences, following = _due_occurrences(schedule, document.due_at or now, now)
    except ConfigurationError as error:
        # As where a machine lacks zone data. The occurrence stays due, and others must not wait for it.
        _say_once(schedule.name, str(error))
        return None
    try:
        commands = [encode_request(scope, schedule.request_at(each, body.seed)) for each in occurrences]
    except CommandBusError as error:
        # Such as a priority that only other processes know. Other schedules must not wait for it.
        logger.error("schedule %s cannot send, skipped: %s", schedule.name, error)  # noqa: TRY400
        commands = []
    before = body.last_run, body.last_command_id
    if commands:
        body.last_run = as_microseconds(occurrences[-1], "occurrence")
        body.last_command_id = commands[-1].command_id
    if not (yield from _write(scope, body, following, document.version)):
        return 0
    new: list[NewCommand] = []
    for command in commands:
        # A schedule can meet its own occurrence again only after the store's clock has stepped back.
        known = yield from scope.store.find(command.command_id, command.domain)
        new += [] if known else [command]
    if not new:
        return 0
    sent = sum(not row.duplicate for row in (yield from _insert(scope, schedule, new)))
    if not sent:  # an earlier command of this schedule has not ended
        body.last_run, body.last_command_id = before
        yield from _write(scope, body, following, document.version + 1)
    return sent


@lru_cache(maxsize=1_000)
def _say_once(name: str, problem: str) -> None:
    logger.error("schedule %s is left to other processes: %s", name, problem)


def _due_occurrences(schedule: Schedule, first: int, now: int) -> tuple[list[datetime], int]:
    """The occurrences to send now, by the misfire policy, and the occurrence after them."""
    begin, moment = as_datetime(first), as_datetime(now)
    if schedule.misfire is Misfire.ALL:
        occurrences = [begin]
        for occurrence in schedule.occurrences_after(begin):
            if occurrence > moment or len(occurrences) >= CATCH_UP_MAX:
                return occurrences, as_microseconds(occurrence, "occurrence")
            occurrences.append(occurrence)
    newest = schedule.newest_occurrence(begin, moment)
    following = as_microseconds(next(schedule.occurrences_after(newest)), "occurrence")
    if schedule.misfire is Misfire.SKIP and now - as_microseconds(newest, "occurrence") > GRACE:
        return [], following
    return [newest], following


def _switch(scope: Scope, name: str, enabled: bool, reason: str | None) -> Op[ScheduleRecord]:
    while True:
        body, document = yield from _require(scope, name)
        if body.schedule.enabled == enabled:
            return _record(body, document.due_at)  # an occurrence that is due stays due
        body.schedule = msgspec.structs.replace(body.schedule, enabled=enabled)
        due_at = (yield from _next_from_now(scope, body.schedule)) if enabled else None
        if (yield from _write(scope, body, due_at, document.version)):
            yield from scope.store.announce(TOPIC)
            action = "enable_schedule" if enabled else "disable_schedule"
            yield from record_action(scope, action, name, reason)
            return _record(body, due_at)


def _require(scope: Scope, name: str) -> Op[tuple[_Body, Document]]:
    document = yield from scope.store.get_document(KIND, as_name(name, "schedule"))
    if document is None:
        raise NotFoundError(f"There is no schedule {name!r}; create it with put_schedule.")
    return _decoder.decode(document.body), document


def _write(scope: Scope, body: _Body, due_at: int | None, version: int) -> Op[bool]:
    encoded = msgspec.json.encode(body).decode()
    status = "enabled" if body.schedule.enabled else "disabled"
    document = Document(KIND, body.schedule.name, version, status, due_at, encoded)
    return (yield from scope.store.put_document(document))


def _next_from_now(scope: Scope, schedule: Schedule) -> Op[int]:
    now = yield from scope.store.now()
    return as_microseconds(next(schedule.occurrences_after(as_datetime(now))), "occurrence")


def _insert(scope: Scope, schedule: Schedule, commands: Sequence[NewCommand]) -> Op[list[Inserted]]:
    """Send commands of a schedule. One whose unique key is held is a duplicate, also where a send
    would be rejected: later occurrences must not wait for it."""
    request = schedule.request_at()
    if request.unique is None:
        return (yield from scope.insert(commands, Capacity()))
    unique = request.unique.checked(request.unique_key)
    results: list[Inserted] = []
    for command in commands:
        try:
            results += yield from insert_unique(scope, [command], [unique], Capacity(), reply_to_sender)
        except UniqueKeyHeld as held:
            results.append(Inserted(held.holder, duplicate=True))
    return results


def _times(schedule: Schedule) -> tuple[object, ...]:
    return schedule.cron, schedule.every, schedule.timezone, schedule.enabled


def _record(body: _Body, due_at: int | None) -> ScheduleRecord:
    return ScheduleRecord(
        body.schedule,
        None if due_at is None else as_datetime(due_at),
        None if body.last_run is None else as_datetime(body.last_run),
        body.last_command_id,
    )
