"""Canceling: a command that waits or is parked ends at once, one that runs is asked to stop.

The request is a document beside the command, so it survives crashes: it reaches the worker that runs
the command by a notification, or with the next renewal of its lease; and when the command comes back
to wait, the first worker that looks ends it. It is dropped when the command has ended, however it did.

A process asks, too, when a step of it was not in time, or when it is canceled itself. It undoes what it
did, so the command must not begin again: a worker that claims such a command looks for the request
before it begins. A run of a step that was in time is not interrupted: its process waits for its end.
This is a document of its own: an operator who lets the command be tried again takes back what
operators asked, and not that the process has given it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.command import CommandRecord, CommandRef
from commandbus.domain.lifecycle import FINAL, PARKED, Cancellation, CommandStatus
from commandbus.domain.names import as_reason
from commandbus.errors import InvalidOperationError
from commandbus.operations import commands
from commandbus.operations.actions import record_action
from commandbus.operations.commands import find_one
from commandbus.operations.ledger import CANCEL, link_event
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op, autocommit
from commandbus.store.port import Store
from commandbus.store.records import CancelRequest, Claimed, ClaimReply, OperatorAction
from commandbus.store.sessions import CANCELLATIONS

KIND = "cancellation"
TRIES_MAX = 5
"""How often a state is read that changes while it is acted upon."""
OF_A_STEP = '"process_type"'
"""In the headers of every command that a process sends."""


class _Body(msgspec.Struct, frozen=True):
    domain: str
    command_id: UUID
    request: CancelRequest


_decoder = msgspec.json.Decoder(_Body)


def cancel(
    scope: Scope,
    command_id: CommandRef,
    *,
    domain: str | None = None,
    reason: str | None = None,
    terminate: bool = False,
) -> Op[Cancellation]:
    """Cancel a command in whatever state it is, and say what that did. One that waits or is parked
    ends as CANCELED at once. One that runs is asked to stop: an `async def` handler is canceled, a
    `def` handler sees `context.canceled`; when it gives way the command ends as CANCELED, when it
    completes nevertheless that stands, and it is not tried again. With `terminate`, the process of a
    handler with `isolation="process"` is killed instead; other handlers are asked all the same.

    Raises CommandNotFoundError, and InvalidOperationError when it has ended, or when several domains
    have a command with this id and `domain` is not given.
    """
    checked = as_reason(reason) or f"canceled by {scope.by}"
    tries = 0
    while True:
        tries += 1
        record = yield from find_one(scope, command_id, domain)
        try:
            if record.status is PARKED:
                yield from end_parked(scope, record, OperatorAction("cancel", scope.by, checked))
                return Cancellation.CANCELED_PARKED
            # Tried also where it seems to run: a message may be gone, or its worker may have let go.
            yield from cancel_waiting(scope, record, checked)
        except InvalidOperationError:
            if record.status is not CommandStatus.IN_PROGRESS:
                if record.status in FINAL or tries == TRIES_MAX:
                    raise
                continue  # its state has changed since it was read
        else:
            return Cancellation.CANCELED
        yield from _ask_to_stop(scope, record, checked, terminate)
        return Cancellation.STOP_REQUESTED


def cancel_waiting(scope: Scope, record: CommandRecord, reason: str) -> Op[None]:
    """End a waiting command as CANCELED. Raises InvalidOperationError when it does not wait."""
    yield from scope.store.cancel(record.domain, record.command_id, reason, scope.by)
    yield from commands.reply_to_sender(scope, record.domain, record.command_id)
    yield from link_event(scope, record.domain, record.command_id, AuditEventType.CANCELED)


def end_parked(scope: Scope, record: CommandRecord, action: OperatorAction) -> Op[None]:
    """Cancel or complete a parked command, and answer its sender, in one transaction. Raises
    InvalidOperationError when it is not parked (any more)."""
    yield from scope.store.resolve(record.domain, record.command_id, action)
    yield from commands.reply_to_sender(scope, record.domain, record.command_id)
    kind = AuditEventType(f"OPERATOR_{action.kind.upper()}")
    yield from link_event(scope, record.domain, record.command_id, kind)


def _ask_to_stop(scope: Scope, record: CommandRecord, reason: str, terminate: bool) -> Op[None]:
    request = CancelRequest(reason, scope.by, terminate)
    if (yield from _leave_request(scope, record.domain, record.command_id, request)):
        yield from record_action(scope, CANCEL, _key(record.domain, record.command_id), reason)


def call_off(scope: Scope, domain: str, command_id: UUID, reason: str, *, awaited: bool) -> Op[None]:
    """Keep a running command from beginning again, for the process that sent it and undoes it; unless
    its run is awaited, ask it to stop. This is no operator action, so the request names no actor, and
    the database role `worker` may leave it."""
    records = yield from scope.store.find(command_id, domain)
    if records and records[0].status not in FINAL:
        request = CancelRequest(reason, given_up=True, awaited=awaited)
        yield from _leave_request(scope, domain, command_id, request)


def _leave_request(scope: Scope, domain: str, command_id: UUID, request: CancelRequest) -> Op[bool]:
    """Whether the request is new, and in the trail."""
    key = _key(domain, command_id, given_up=request.given_up)
    terminate = request.terminate
    body = msgspec.json.encode(_Body(domain, command_id, request)).decode()
    # Of several operators the first one counts, but one who terminates comes after any other.
    is_new = yield from scope.store.put_document(Document(KIND, key, 0, "asked", None, body))
    if not is_new and terminate:
        present = yield from scope.store.get_document(KIND, key)
        if present is not None and not _decoder.decode(present.body).request.terminate:
            is_new = yield from scope.store.put_document(
                Document(KIND, key, present.version, "asked", None, body)
            )
    yield from scope.store.announce(CANCELLATIONS)
    if is_new:
        details: dict[str, Any] = {"by": request.actor or "its process", "reason": request.reason}
        details |= {"terminate": True} if terminate else {}
        yield from scope.store.note(domain, command_id, AuditEventType.CANCEL_REQUESTED, details)
    return is_new


_crashes, _headers = attrgetter("crashes"), attrgetter("headers")


def in_doubt(claimed: Sequence[Claimed]) -> bool:
    """Whether a request to cancel one of these commands may have come before their claim, and may not
    be known here: one whose worker died, or the step of a process."""
    return any(map(_crashes, claimed)) or any(
        OF_A_STEP in headers for headers in map(_headers, claimed) if headers is not None
    )


def _may_be_asked(one: Claimed) -> bool:
    return one.crashes > 0 or (one.headers is not None and OF_A_STEP in one.headers)


@autocommit
def with_requests(store: Store, reply: ClaimReply) -> Op[ClaimReply]:
    """The reply to a claim, in which commands that were asked to stop before say so."""
    keys = {
        key: one.seq
        for one in reply.claimed
        if _may_be_asked(one)
        for key in _keys(one.domain, one.command_id)
    }
    if not keys:
        return reply
    found = yield from store.get_documents(KIND, list(keys))
    asked: dict[int, CancelRequest] = {}
    for seq, request in readable(found, lambda d: (keys[d.key], _read(d).request)):
        asked[seq] = _both(asked.get(seq), request)
    if not asked:
        return reply
    claimed = [
        msgspec.structs.replace(one, cancel=asked[one.seq]) if one.seq in asked else one
        for one in reply.claimed
    ]
    return msgspec.structs.replace(reply, claimed=claimed)


def _both(one: CancelRequest | None, other: CancelRequest) -> CancelRequest:
    """What an operator and its process ask of a command, as one request: it is given up, and it is the
    operator's, since a process that awaits a run does not end it. A run that ends for it names the
    operator; without an actor it would look like one whose own handler canceled it."""
    if one is None:
        return other
    return msgspec.structs.replace(
        other if one.given_up else one,
        terminate=one.terminate or other.terminate,
        given_up=one.given_up or other.given_up,
        awaited=one.awaited and other.awaited,
    )


def requested(scope: Scope, record: CommandRecord) -> Op[CancelRequest | None]:
    """What a running command was asked, that has not taken effect yet."""
    asked: CancelRequest | None = None
    for body in (yield from _standing(scope, record.domain, record.command_id)):
        asked = _both(asked, body.request)
    return asked


def _standing(scope: Scope, domain: str, command_id: UUID) -> Op[list[_Body]]:
    keys = _keys(domain, command_id)
    return readable((yield from scope.store.get_documents(KIND, keys)), _read)


def open_requests(scope: Scope, domains: Sequence[str]) -> Op[dict[int, CancelRequest]]:
    """The commands of these domains that run and are to stop, by sequence. Requests whose command
    waits again are carried out here, and those whose command has ended are dropped."""
    running: dict[int, CancelRequest] = {}
    requests: dict[tuple[str, UUID], CancelRequest] = {}
    seen: dict[tuple[str, UUID], list[str]] = {}
    after: str | None = None
    while page := (yield from scope.store.list_documents(KIND, after=after)):
        for key, asked in readable(page, lambda d: (d.key, _read(d))):
            place = (asked.domain, asked.command_id)
            requests[place] = _both(requests.get(place), asked.request)
            seen.setdefault(place, []).append(key)
        after = page[-1].key
    for (domain, command_id), request in requests.items():
        if domain not in domains:
            continue
        records = yield from scope.store.find(command_id, domain)
        status = records[0].status if records else None
        if status is CommandStatus.IN_PROGRESS:
            if not request.awaited:
                running[records[0].sequence] = request
            continue
        if status is CommandStatus.PENDING or (status is PARKED and request.given_up):
            try:
                yield from _carry_out(scope, domain, command_id, request)
            except InvalidOperationError:  # a worker took it just now, and looks for this request
                if not request.awaited:
                    running[records[0].sequence] = request
                continue
        for key in seen[domain, command_id]:  # not another that has come since
            yield from scope.store.delete_document(KIND, key)
    return running


def _carry_out(scope: Scope, domain: str, command_id: UUID, request: CancelRequest) -> Op[None]:
    if request.given_up:
        yield from scope.store.revoke(domain, command_id, request.reason)
    else:
        yield from scope.store.cancel(domain, command_id, request.reason, request.actor)
    yield from commands.reply_to_sender(scope, domain, command_id)


def withdraw(scope: Scope, domain: str, command_id: UUID) -> Op[None]:
    """An operator lets it be tried again, which counts more than an earlier request to cancel it.
    Raises InvalidOperationError when its process has given it up, and undoes it."""
    standing = yield from _standing(scope, domain, command_id)
    if any(body.request.given_up for body in standing):
        raise InvalidOperationError(
            f"Command {command_id} cannot be retried: the process that sent it was canceled or did not "
            "get its result in time, has given it up and undoes it. Cancel it, and start the process "
            "again."
        )
    if (yield from scope.store.delete_document(KIND, _key(domain, command_id))):
        yield from scope.store.announce(CANCELLATIONS)


def _read(document: Document) -> _Body:
    return _decoder.decode(document.body)


def _key(domain: str, command_id: UUID, *, given_up: bool = False) -> str:
    return f"{domain} {command_id} given up" if given_up else f"{domain} {command_id}"


def _keys(domain: str, command_id: UUID) -> list[str]:
    """Of the requests that a command can have: its operators', and that of its process."""
    return [_key(domain, command_id), _key(domain, command_id, given_up=True)]
