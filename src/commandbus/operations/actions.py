"""Operator actions on domains, schedules, breakers, limits, batches and processes, with their actor.

An action on a command is recorded in that command's trail; the others are documents here. The record
and its link in the ledger are part of the transaction that acts: an operation ends with
`record_action`, and an action that changed nothing leaves no record.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.moment import as_datetime
from commandbus.domain.names import as_member, as_reason, as_text
from commandbus.domain.page import Page, as_cursor, as_limit
from commandbus.operations.ledger import ACTION as KIND
from commandbus.operations.ledger import link, of_action
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op
from commandbus.store.records import AuditEntry, AuditFilter

T = TypeVar("T")


class ActionRecord(msgspec.Struct, frozen=True):
    """Who did what to which subject, and why."""

    actor: str
    action: str
    subject: str
    reason: str | None
    at: datetime


_decoder = msgspec.json.Decoder(ActionRecord)


def record_action(scope: Scope, action: str, subject: str, reason: str | None = None) -> Op[None]:
    """Record an action of the scope's actor: the last part of the transaction that carries it out."""
    now = yield from scope.store.now()
    record = ActionRecord(scope.by, action, subject[:500], as_reason(reason), as_datetime(now))
    key = f"{now:016x}-{scope.new_id()}"
    document = Document(KIND, key, 0, action, None, msgspec.json.encode(record).decode())
    yield from scope.store.put_document(document)
    yield from link(scope, [of_action(scope, record.at, document)])


def recorded(scope: Scope, op: Op[T], action: str, subject: str, reason: str | None = None) -> Op[T]:
    """An op and the record of it, in one transaction."""
    done = yield from op
    yield from record_action(scope, action, subject, reason)
    return done


def list_actions(
    scope: Scope, *, action: str | None = None, after: str | None = None, limit: int = 100
) -> Op[Page[ActionRecord]]:
    """What people did to domains, schedules and breakers, newest first, a page at a time."""
    for value in (action, after):
        if value is not None:
            as_text(value, "action" if value is action else "after")
    as_limit(limit)
    page = yield from scope.store.list_documents(
        KIND, status=action, after=after, limit=limit, backwards=True
    )
    return Page(
        readable(page, lambda document: _decoder.decode(document.body)),
        page[-1].key if len(page) == limit else None,
    )


def search_audit(
    scope: Scope,
    *,
    domain: str | None = None,
    event_type: AuditEventType | str | None = None,
    actor: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Op[Page[AuditEntry]]:
    """What happened to commands besides being sent, received and completed: failures, lost workers,
    operators' actions; of all commands, newest first, a page at a time. A page may be short and still
    have a next one: it looks at a bounded number of events."""
    kind = as_member(AuditEventType, event_type, "event")
    wanted = AuditFilter(
        domain, kind and kind.value, actor, as_cursor(after), limit=as_limit(limit) + 1
    )
    found = yield from scope.store.search_audit(wanted)
    return Page(found[:limit], str(found[limit - 1].id) if len(found) > limit else None)
