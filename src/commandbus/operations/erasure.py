"""Erasure: the payloads of a data subject are erased; ids, timestamps and outcomes are kept.

Commands are found by values in the payload, in headers, or by a tag. Only commands that have ended can
be erased: waiting and parked ones are refused, or canceled first on request; running ones are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.command import CommandRecord
from commandbus.domain.counts import as_items
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus
from commandbus.domain.names import as_name, as_text
from commandbus.domain.reply import REPLY_TYPE
from commandbus.errors import CommandBusError, InvalidArgumentError
from commandbus.operations.actions import record_action
from commandbus.operations.canceling import cancel_waiting, end_parked
from commandbus.operations.commands import query_commands
from commandbus.operations.ledger import Link, link, unsalt, written
from commandbus.operations.parked_notes import forget_case
from commandbus.operations.scope import Flow, Scope, Send
from commandbus.operations.uniqueness import forget_window
from commandbus.store.op import Op
from commandbus.store.records import OperatorAction

PIECE = 100
"""Commands erased in one transaction."""
SCAN = 20_000
"""Commands looked at in one statement."""


class EraseReport(msgspec.Struct, frozen=True):
    """What an erasure did; as a dry run, what it would do."""

    erased: int
    """Commands, replies included."""
    canceled: int
    """How many of them had not ended."""
    waiting: int
    """Not erased, because they, or their replies, wait or are parked and were not to be canceled."""
    running: int
    """Not erased, because they run: repeat it when they have ended."""

    @property
    def complete(self) -> bool:
        return not self.waiting and not self.running


def erase(
    scope: Scope,
    *,
    reason: str,
    data: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    tag: str | None = None,
    domains: Iterable[str] | None = None,
    cancel_waiting: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], bool | None] | None = None,
) -> Flow[EraseReport]:
    """Erase what the commands of a data subject carried: payload, result, errors, headers, tags, keys,
    comments, and what the audit kept of them, and the same of their replies. Ids, times and outcomes
    stay, and each trail says who did it and why.

    The subject is meant by all conditions that are given: values at paths of the payload or the
    headers, or a tag; in some domains, or all. What waits or is parked is left and counted, or with
    `cancel_waiting` canceled first; what runs is left and counted. Each piece is its own transaction:
    repeating an erasure that was interrupted finishes it. `progress` is called with the number of
    commands erased so far after each piece; returning False ends it. Raises InvalidArgumentError.
    """
    because = as_text(reason, "reason", longest=500)
    if not data and not headers and tag is None:
        raise InvalidArgumentError(
            'Say whose commands are meant: data={"account": "42"}, headers= or tag=.'
        )
    chosen = None if domains is None else [as_name(d, "domain") for d in as_items(domains, "domains")]
    # The values are what is to be forgotten, so only the places are put on record.
    places = [f"data.{path}" for path in data or ()] + [f"headers.{path}" for path in headers or ()]
    subject = f"by {', '.join([*places, *(['tag'] if tag else [])])} in {_told(chosen)}"
    work = _Work(subject, because, cancel_waiting, dry_run)
    for domain in chosen if chosen is not None else [None]:
        after: str | None = None
        while True:
            page = yield query_commands(
                scope,
                domain=domain,
                data=data,
                headers=headers,
                tag=tag,
                after=after,
                scan=SCAN,
                limit=PIECE,
            )
            yield from _erase_page(scope, page, work)
            if progress is not None and progress(work.erased) is False:
                return work.report()
            after = page.next
            if after is None:
                break
    return work.report()


@dataclass(slots=True)
class _Work:
    """What is to be done, and what was."""

    subject: str
    reason: str
    cancel_waiting: bool
    dry_run: bool
    erased: int = 0
    canceled: int = 0
    waiting: int = 0
    running: int = 0

    def report(self) -> EraseReport:
        return EraseReport(self.erased, self.canceled, self.waiting, self.running)


def _erase_page(scope: Scope, records: Sequence[CommandRecord], work: _Work) -> Flow[None]:
    """What can be erased of these, with their replies, in one transaction."""
    chosen: list[CommandRecord] = []
    for record in records:
        replies = (yield from _replies(scope, record)) if record.status in FINAL else []
        alive = [one for one in (record, *replies) if one.status not in FINAL]
        if any(one.status is CommandStatus.IN_PROGRESS for one in alive):
            work.running += 1
        elif alive and not work.cancel_waiting:
            work.waiting += 1
        elif work.dry_run or (yield from _canceled(scope, alive)):
            work.canceled += len(alive)
            chosen += [record, *replies]
        else:
            work.running += 1
    if work.dry_run:
        work.erased += len(chosen)
    elif chosen:
        work.erased += yield Send(_erase_piece(scope, chosen, work))


def _told(domains: Sequence[str] | None) -> str:
    return "all domains" if domains is None else ", ".join(domains)


def _canceled(scope: Scope, alive: Sequence[CommandRecord]) -> Flow[bool]:
    """Whether they could be canceled: a worker may have begun with one just now."""
    reason = "its data is erased"
    try:
        for record in alive:
            if record.status is PARKED:
                yield Send(end_parked(scope, record, OperatorAction("cancel", scope.by, reason)))
            else:
                yield Send(cancel_waiting(scope, record, reason))
    except CommandBusError:
        return False
    return True


def _replies(scope: Scope, record: CommandRecord) -> Flow[list[CommandRecord]]:
    """Its replies, which carry its result."""
    if record.reply_to is None:
        return []
    page = yield query_commands(
        scope, domain=record.reply_to, correlation_id=record.correlation_id, limit=PIECE
    )
    return [
        reply
        for reply in page
        if reply.command_type == REPLY_TYPE and reply.causation_id == record.command_id
    ]


def _erase_piece(scope: Scope, records: Sequence[CommandRecord], work: _Work) -> Op[int]:
    by_sequence = {record.sequence: record for record in records}
    erased = yield from scope.store.erase(sorted(by_sequence))
    details = {"actor": scope.by, "reason": work.reason, "erased": True}
    links: list[Link] = []
    for sequence in erased:
        place = (by_sequence[sequence].domain, by_sequence[sequence].command_id)
        yield from scope.store.note(*place, AuditEventType.ERASED, details)
        yield from unsalt(scope, *place)
        yield from forget_case(scope, *place)
        yield from forget_window(scope, *place, by_sequence[sequence].unique_key)
        links.append((yield from written(scope, *place, AuditEventType.ERASED, details)))
    yield from link(scope, links)
    if erased and not work.erased:
        yield from record_action(scope, "erase", work.subject, work.reason)
    return len(erased)
