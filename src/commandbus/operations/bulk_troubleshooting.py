"""Many parked commands at once: grouped by what went wrong, acted upon with preview and progress."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from commandbus.domain.command import CommandRecord, CommandRef
from commandbus.domain.counts import as_count, as_items
from commandbus.domain.failure import Failure
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus
from commandbus.domain.moment import Duration, as_datetime, as_seconds
from commandbus.domain.names import as_name
from commandbus.errors import CommandNotFoundError, InvalidArgumentError, InvalidOperationError
from commandbus.operations.choosing import as_ids, choose
from commandbus.operations.scope import Await, Flow, Scope, Send
from commandbus.operations.troubleshooting import operator_cancel, operator_complete, operator_retry
from commandbus.store.op import Op
from commandbus.store.records import ParkedGroup

BULK_MAX = 1_000_000


class FailureGroup(msgspec.Struct, frozen=True):
    """Parked commands that failed in the same way: same type, code, exception, module and function."""

    fingerprint: str
    domain: str
    command_type: str
    error_code: str
    exception: str | None
    frame: str | None
    message: str
    """Of the newest one."""
    count: int
    oldest: datetime
    newest: datetime
    example: UUID


class BulkReport(msgspec.Struct, frozen=True):
    """What a bulk action did; with preview, only what it would have done."""

    matched: int
    done: int
    refused: int
    """Those that were not parked any more when their turn came."""
    stopped: bool
    failed: int = 0
    """With a canary: those that were tried again and did not complete, which stopped it."""
    failed_ids: tuple[UUID, ...] = ()


def fingerprint(domain: str, command_type: str, error: Failure | None) -> str:
    """Equal for commands that failed in the same way: same type, code, exception, module and function.
    The message does not count, since it often carries ids, nor do the line and the folder of the code,
    which another deploy changes."""
    failed = (error.code, error.exception, error.place) if error else ()
    parts = (domain, command_type, *failed)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def group_failures(
    scope: Scope, domain: str | None = None, command_type: str | None = None
) -> Op[list[FailureGroup]]:
    """All parked commands grouped by how they failed, largest group first."""
    name = None if domain is None else as_name(domain, "domain")
    kind = None if command_type is None else as_name(command_type, "command_type")
    groups: dict[str, FailureGroup] = {}
    for parked in (yield from scope.store.group_parked(name, kind)):
        group = _group(parked)
        known = groups.get(group.fingerprint)
        groups[group.fingerprint] = group if known is None else _together(known, group)
    return sorted(groups.values(), key=lambda group: (-group.count, group.fingerprint))


def bulk(
    scope: Scope,
    action: str,
    *,
    reason: str | None = None,
    command_ids: Iterable[CommandRef] | None = None,
    domain: str | None = None,
    command_type: str | None = None,
    error_code: str | None = None,
    group: str | None = None,
    everything: bool = False,
    limit: int | None = None,
    result: Any = None,
    preview: bool = False,
    progress: Callable[[int, int], bool | None] | None = None,
    canary: int | Sequence[int] = (),
    patience: Duration = 60.0,
) -> Flow[BulkReport]:
    """Retry, cancel or complete many parked commands: those named, those that meet all conditions, or
    with `everything` and no condition all of them.

    `group` is the fingerprint of a FailureGroup. With `preview` nothing is done and the report says how
    many there are. `progress` is called with (done so far, matched) after each, and while a canary is
    watched; returning False stops. Each command is its own transaction. With canary=10, a retry begins
    with ten, those parked longest, and goes on with the others when these completed; canary=(1, 10) has
    two such stages. One that does not complete within `patience` seconds leaves the rest parked. Raises
    InvalidArgumentError when neither ids, nor any condition, nor `everything` is given, or a cancel has
    no reason.
    """
    limit = None if limit is None else as_count(limit, "limit", highest=BULK_MAX)
    build = _builder(action, reason, result)
    looks = _looks(action, canary)
    seconds = as_seconds(patience, "patience")
    if command_ids is None and not any((domain, command_type, error_code, group, everything)):
        raise InvalidArgumentError(
            "Say which: command_ids, domain, command_type, error_code, group, or everything."
        )
    domain, command_type = _checked(domain, "domain"), _checked(command_type, "command_type")
    wanted = as_ids(command_ids)
    if preview and wanted is None:
        count = yield from _count(scope, domain, command_type, error_code, group)
        return BulkReport(count if limit is None else min(count, limit), 0, 0, stopped=False)
    keep = partial(_kept, error_code, group)
    conditions = {"domain": domain, "command_type": command_type, "status": PARKED}
    every = None if looks else limit  # a canary begins with those that were parked longest
    chosen = yield from choose(scope, wanted, keep, every, **conditions)
    chosen = sorted(chosen)[:limit] if looks else chosen
    if preview:
        return BulkReport(len(chosen), 0, 0, stopped=False)
    done = refused = 0
    tried: list[_Parked] = []
    for parked in chosen:
        try:
            yield Send(build(scope, parked))
            done += 1
            tried.append(parked)
        except (InvalidOperationError, CommandNotFoundError):
            refused += 1
        if progress is not None and progress(done + refused, len(chosen)) is False:
            return BulkReport(len(chosen), done, refused, stopped=True)
        if done + refused in looks:
            tell = None if progress is None else partial(progress, done + refused, len(chosen))
            failed = yield from _failed(scope, tried, seconds, tell)
            if failed is None or failed:
                return BulkReport(len(chosen), done, refused, True, len(failed or ()), failed or ())
            tried = []
    return BulkReport(len(chosen), done, refused, stopped=False)


class _Parked(NamedTuple):
    """What is kept of a parked command while others are read, in the order of a canary: what failed in
    the last one is not in the next."""

    since: datetime
    sequence: int
    command_id: UUID
    domain: str


def _kept(error_code: str | None, group: str | None, record: CommandRecord) -> _Parked | None:
    """None for a command that failed in another way."""
    if error_code not in (None, record.error_code):
        return None
    if group not in (None, fingerprint(record.domain, record.command_type, record.error)):
        return None
    since = record.finished_at or record.created_at
    return _Parked(since, record.sequence, record.command_id, record.domain)


def _count(
    scope: Scope,
    domain: str | None,
    command_type: str | None,
    error_code: str | None,
    group: str | None,
) -> Flow[int]:
    """How many parked commands meet all conditions, without reading them."""
    if error_code is None and group is None:
        parked: int = yield scope.store.count_parked(domain, command_type)
        return parked
    found: list[FailureGroup] = yield group_failures(scope, domain, command_type)
    return sum(
        one.count
        for one in found
        if error_code in (None, one.error_code) and group in (None, one.fingerprint)
    )


def _checked(name: str | None, what: str) -> str | None:
    return None if name is None else as_name(name, what)


def _looks(action: str, canary: int | Sequence[int]) -> set[int]:
    """After how many commands to look how they fared."""
    sizes = [canary] if isinstance(canary, int) else as_items(canary, "canary")
    stages = [as_count(size, "canary", highest=BULK_MAX) for size in sizes]
    if stages and action != "retry":
        raise InvalidArgumentError("A canary is for retries: what is canceled or completed has ended.")
    return set(accumulate(stages))


def _failed(
    scope: Scope,
    tried: list[_Parked],
    seconds: float,
    tell: Callable[[], bool | None] | None,
) -> Flow[tuple[UUID, ...] | None]:
    """Those that did not complete within so many seconds. None when the caller stopped it."""
    now = yield Await(0)
    deadline = now + seconds
    failed: list[UUID] = []
    while tried:
        waiting: list[_Parked] = []
        for one in tried:
            found = yield scope.store.find(one.command_id, one.domain)
            status = found[0].status if found else None  # its domain may have been purged
            if found and status not in FINAL and status is not PARKED:
                waiting.append(one)
            elif status is not CommandStatus.COMPLETED:
                failed.append(one.command_id)
        if now >= deadline:
            return (*failed, *(one.command_id for one in waiting))
        if tell is not None and tell() is False:
            return None
        tried = waiting
        if tried:
            now = yield Await(min(1.0, deadline - now))
    return tuple(failed)


def _builder(action: str, reason: str | None, result: Any) -> Callable[[Scope, _Parked], Op[None]]:
    match action:
        case "retry":
            return lambda scope, one: operator_retry(
                scope, one.command_id, domain=one.domain, reason=reason
            )
        case "cancel":
            if not reason:
                raise InvalidArgumentError("Canceling needs a reason, for the audit.")
            return lambda scope, one: operator_cancel(
                scope, one.command_id, domain=one.domain, reason=reason
            )
        case "complete":
            return lambda scope, one: operator_complete(
                scope, one.command_id, result, domain=one.domain, reason=reason
            )
        case _:
            raise InvalidArgumentError(f"Unknown action {action!r}; use retry, cancel or complete.")


def _group(parked: ParkedGroup) -> FailureGroup:
    error = parked.error
    return FailureGroup(
        fingerprint(parked.domain, parked.command_type, error),
        parked.domain,
        parked.command_type,
        error.code if error else "",
        error.exception if error else None,
        error.frame if error else None,
        error.message if error else "",
        parked.count,
        as_datetime(parked.oldest),
        as_datetime(parked.newest),
        parked.command_id,
    )


def _together(one: FailureGroup, other: FailureGroup) -> FailureGroup:
    """Errors that cannot be read differ in the store, and are one group."""
    newest = max(one, other, key=lambda group: group.newest)
    return msgspec.structs.replace(
        newest, count=one.count + other.count, oldest=min(one.oldest, other.oldest)
    )
