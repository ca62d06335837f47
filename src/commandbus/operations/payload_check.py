"""Checking what waits against the handlers of new code, before that code is deployed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.command import CommandRecord
from commandbus.domain.counts import as_count
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.domain.names import as_name
from commandbus.domain.payload import Unreadable
from commandbus.errors import InvalidArgumentError, PayloadError
from commandbus.operations.commands import query_commands
from commandbus.operations.scope import Flow, Scope

PAGE = 500
EXAMPLES = 3


class Handlers(Protocol):
    """What the new code can carry out: a HandlerRegistry."""

    def registered_handlers(self) -> list[tuple[str, str]]: ...

    def check_payload(self, domain: str, command_type: str, data: str) -> None: ...


class Misfit(msgspec.Struct):
    """Commands of one type that the new code would not carry out."""

    domain: str
    command_type: str
    problem: str
    """Of the first one that was looked at."""
    waiting: int = 0
    parked: int = 0
    examples: list[UUID] = []


class CheckReport(msgspec.Struct, frozen=True):
    """`complete` is false when a sample was enough and there are more."""

    checked: int
    misfits: list[Misfit]
    complete: bool


def check_payloads(
    scope: Scope,
    registry: Handlers,
    *,
    domains: Iterable[str] | None = None,
    sample: int | None = None,
) -> Flow[CheckReport]:
    """Decode the payloads of everything that waits or is parked as the handlers of a registry would,
    without calling one; in the domains it serves, or those named. With `sample`, only so many of the
    newest of each domain and status. Raises InvalidArgumentError.
    """
    if sample is not None:
        as_count(sample, "sample", highest=1_000_000_000)
    known = set(registry.registered_handlers())
    served = sorted({domain for domain, _ in known})
    chosen = served if domains is None else [as_name(domain, "domain") for domain in domains]
    if not chosen:
        raise InvalidArgumentError("The registry has no handlers; name the one that workers run with.")
    misfits: dict[tuple[str, str], Misfit] = {}
    checked, complete = 0, True
    for domain in chosen:
        for status in (CommandStatus.PENDING, PARKED):
            left, after = sample, None
            while left is None or left > 0:
                limit = PAGE if left is None else min(PAGE, left)
                page = yield query_commands(
                    scope, domain=domain, status=status, after=after, limit=limit
                )
                for record in page:
                    problem = _problem(registry, known, record)
                    if problem is not None:
                        _count(misfits, record, problem)
                checked += len(page)
                left = None if left is None else left - len(page)
                after = page.next
                if after is None:
                    break
            complete = complete and after is None
    return CheckReport(checked, sorted(misfits.values(), key=_size, reverse=True), complete)


def _problem(registry: Handlers, known: set[tuple[str, str]], record: CommandRecord) -> str | None:
    if (record.domain, record.command_type) not in known:
        return "there is no handler for this type"
    if isinstance(record.data, Unreadable):
        return f"its data cannot be read: {record.data.reason}"
    try:
        registry.check_payload(record.domain, record.command_type, payload.encode(record.data))
    except PayloadError as error:
        return str(error)
    return None


def _count(misfits: dict[tuple[str, str], Misfit], record: CommandRecord, problem: str) -> None:
    key = (record.domain, record.command_type)
    misfit = misfits.setdefault(key, Misfit(*key, problem))
    if record.status is PARKED:
        misfit.parked += 1
    else:
        misfit.waiting += 1
    if len(misfit.examples) < EXAMPLES:
        misfit.examples.append(record.command_id)


def _size(misfit: Misfit) -> int:
    return misfit.waiting + misfit.parked
