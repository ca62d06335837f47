"""Cases: what people say and arrange about a parked command until an operator decides it.

What was said is in the command's trail, for ever. What a list shows of it (its assignee, the last
comment, whether it was escalated) is a document beside it, so that parking costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.audit import AuditEventType
from commandbus.domain.command import CommandRecord, CommandRef
from commandbus.domain.counts import as_items
from commandbus.domain.lifecycle import PARKED
from commandbus.domain.moment import SECOND, as_datetime
from commandbus.domain.names import as_name, as_reason, as_text
from commandbus.domain.page import Page, as_limit
from commandbus.errors import CommandNotFoundError, InvalidOperationError
from commandbus.operations.commands import find_one
from commandbus.operations.ledger import link_event
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op
from commandbus.store.records import Capacity, NewCommand, Overdue
from commandbus.store.replies import follow_up

KIND = "case"
ESCALATION = "commandbus.escalation"
"""The kind of the document that says when to look again, and the type of the command that is sent."""
PIECE = 100
"""Commands escalated in one transaction."""
KEPT = 30 * 86_400 * SECOND
"""A case is looked at after this time without a change, and forgotten if it is over."""


class Case(msgspec.Struct, frozen=True):
    """What is known about a parked command beside its record: nothing, for most."""

    assignee: str | None = None
    comments: int = 0
    comment: str | None = None
    """The last one; all of them are in the command's trail."""
    commented_by: str | None = None
    escalated_at: datetime | None = None


_decoder = msgspec.json.Decoder(Case)


def comment(
    scope: Scope,
    command_id: CommandRef,
    text: str,
    *,
    domain: str | None = None,
    reason: str | None = None,
) -> Op[None]:
    """Add a comment to the trail of a command. Raises CommandNotFoundError, and InvalidOperationError
    when several domains have a command with this id and `domain` is not given."""
    said, because = as_text(text, "comment", longest=2_000), as_reason(reason)
    record = yield from find_one(scope, command_id, domain)
    name, wanted = record.domain, record.command_id
    details = {"actor": scope.by, "text": said} | ({"reason": because} if because else {})
    if not (yield from scope.store.note(name, wanted, AuditEventType.COMMENTED, details)):
        raise CommandNotFoundError(name, wanted)  # purged since it was read
    yield from _change(
        scope,
        name,
        wanted,
        lambda case: msgspec.structs.replace(
            case, comments=case.comments + 1, comment=said, commented_by=scope.by
        ),
    )
    yield from link_event(scope, name, wanted, AuditEventType.COMMENTED, details)


def assign(
    scope: Scope,
    command_id: CommandRef,
    assignee: str | None,
    *,
    domain: str | None = None,
    reason: str | None = None,
) -> Op[None]:
    """Assign a parked command to a person, or to none with None. Raises CommandNotFoundError, and
    InvalidOperationError when it is not parked (any more), or when several domains have a command with
    this id and `domain` is not given."""
    who = None if assignee is None else as_text(assignee, "assignee", longest=200)
    because = as_reason(reason)
    record = yield from find_one(scope, command_id, domain)
    name, wanted = record.domain, record.command_id
    details = {"actor": scope.by, "assignee": who} | ({"reason": because} if because else {})
    if not (yield from scope.store.note(name, wanted, AuditEventType.ASSIGNED, details, parked=True)):
        record = yield from find_one(scope, wanted, name)  # its state may have changed since
        raise InvalidOperationError(
            f"Only a parked command is assigned to a person; this one is {record.status}."
        )
    yield from _change(scope, name, wanted, lambda case: msgspec.structs.replace(case, assignee=who))
    yield from link_event(scope, name, wanted, AuditEventType.ASSIGNED, details)


def list_cases(scope: Scope, commands: Iterable[CommandRecord]) -> Op[Page[Case]]:
    """The cases of these commands, in their order, in one page."""
    keys = [case_key(record.domain, record.command_id) for record in as_items(commands, "commands")]
    found = (yield from scope.store.get_documents(KIND, keys)) if keys else []
    cases = dict(readable(found, lambda d: (d.key, _decoder.decode(d.body))))
    return Page([cases.get(key) or Case() for key in keys])


def list_assigned(
    scope: Scope, assignee: str, *, after: str | None = None, limit: int = 100
) -> Op[Page[CommandRecord]]:
    """The parked commands that are assigned to a person, by domain and id, a page at a time."""
    as_limit(limit)
    who = as_text(assignee, "assignee", longest=200)
    cursor = None if after is None else as_text(after, "after")
    found: list[CommandRecord] = []
    while page := (yield from scope.store.list_documents(KIND, status=who, after=cursor)):
        for document in page:
            cursor = document.key
            for domain, command_id in readable([document], _command_of):
                records = yield from scope.store.find(command_id, domain)
                found += [record for record in records if record.status is PARKED]
            if len(found) == limit:
                return Page(found, cursor)
    return Page(found)


def escalate(
    scope: Scope, seconds: float, send_to: str | None, pause: float
) -> Op[tuple[list[Overdue], float]]:
    """Put on record which commands have been parked for longer, each once; tell a domain about them,
    if one is named. Returns them, and when to look again.

    The worker that changes the document with the next time does the work in the same transaction: the
    other workers wait for it for a moment, and find the work done.
    """
    now = yield from scope.store.now()
    known = yield from scope.store.get_document(ESCALATION, "next")
    if known is not None and known.due_at is not None and known.due_at > now:
        return [], min(pause, (known.due_at - now) / SECOND)
    overdue = yield from scope.store.overdue(seconds, PIECE)
    if len(overdue) == PIECE:
        pause = 0.2
    version, due_at = known.version if known else 0, now + int(pause * SECOND)
    following = Document(ESCALATION, "next", version, "", due_at, "{}")
    if not (yield from scope.store.put_document(following)):
        return [], pause
    if send_to is not None and overdue:
        reports = [_report(scope, send_to, command) for command in overdue]
        yield from scope.insert(reports, Capacity(scope.settings.max_pending))
    for command in overdue:
        details = {"after": seconds} | ({"sent_to": send_to} if send_to else {})
        kind = AuditEventType.ESCALATED
        yield from scope.store.note(command.domain, command.command_id, kind, details)
        yield from _change(
            scope,
            command.domain,
            command.command_id,
            lambda case: msgspec.structs.replace(case, escalated_at=as_datetime(now)),
        )
    return overdue, pause


def forget_cases(scope: Scope) -> Op[int]:
    """Drop cases that were not changed for long and whose commands are not parked any more; returns how
    many."""
    gone = 0
    for document in (yield from scope.store.due_documents(KIND)):
        records: list[CommandRecord] = []
        for domain, command_id in readable([document], _command_of):
            records = yield from scope.store.find(command_id, domain)
        if records and records[0].status is PARKED:
            later = (yield from scope.store.now()) + KEPT
            yield from scope.store.put_document(msgspec.structs.replace(document, due_at=later))
        else:
            gone += yield from scope.store.delete_document(KIND, document.key)
    return gone


def forget_case(scope: Scope, domain: str, command_id: UUID) -> Op[None]:
    """Drop what lists show of it; its trail stays."""
    yield from scope.store.delete_document(KIND, case_key(domain, command_id))


def _report(scope: Scope, send_to: str, command: Overdue) -> NewCommand:
    data = {
        "domain": command.domain,
        "command_id": str(command.command_id),
        "command_type": command.command_type,
        "parked_at": as_datetime(command.parked_at).isoformat(),
        "error_code": command.error_code,
    }
    key, text = scope.new_id(), payload.encode(data)
    domain = as_name(send_to, "escalate_to")
    return follow_up(domain, ESCALATION, text, key, command.command_id, command_id=key)


def _change(scope: Scope, domain: str, command_id: UUID, change: Callable[[Case], Case]) -> Op[None]:
    key = case_key(domain, command_id)
    while True:
        known = yield from scope.store.get_document(KIND, key)
        cases = readable([known] if known else [], lambda d: _decoder.decode(d.body))
        case = change(cases[0] if cases else Case())
        until = (yield from scope.store.now()) + KEPT
        body = payload.encode(msgspec.to_builtins(case), what="case")
        version = known.version if known else 0
        changed = Document(KIND, key, version, case.assignee or "", until, body)
        if (yield from scope.store.put_document(changed)):
            return


def case_key(domain: str, command_id: UUID) -> str:
    return f"{domain} {command_id}"


def _command_of(document: Document) -> tuple[str, UUID]:
    domain, _, command_id = document.key.partition(" ")
    return domain, UUID(command_id)
