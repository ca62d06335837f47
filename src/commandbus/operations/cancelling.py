"""Cancelling: what waits is called off at once, what runs is asked to stop.

The request is a document beside the command, so it survives crashes: it reaches the worker that runs
the command by a notification, or with the next renewal of its lease; and when the command comes back
to wait, whoever looks first ends it. It is dropped when the command has ended, however it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from commandbus.domain.ids import as_id
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.names import as_name, as_text
from commandbus.errors import InvalidOperationError
from commandbus.operations import commands
from commandbus.operations.actions import record_action
from commandbus.operations.ledger import CANCEL
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import TOGETHER, Op
from commandbus.store.records import CancelRequest

KIND = "cancellation"
TOPIC = "commandbus.cancellations"
_LIVE = (CommandStatus.PENDING, CommandStatus.IN_PROGRESS)


class _Body(msgspec.Struct, frozen=True):
    domain: str
    command_id: UUID
    request: CancelRequest


_decoder = msgspec.json.Decoder(_Body)


def cancel(
    scope: Scope,
    domain: str,
    command_id: UUID | str,
    reason: str = "canceled by the sender",
) -> Op[CommandStatus]:
    """Cancel a command. One that waits ends as CANCELED at once. One that runs is asked to stop: an
    `async def` handler is cancelled, a `def` handler sees `context.cancelled`; when it gives way the
    command ends as CANCELED, when it completes nevertheless that stands, and it is not tried again.

    Returns CANCELED, or IN_PROGRESS when it was asked to stop. Raises CommandNotFoundError, or
    InvalidOperationError when it has ended or is parked.
    """
    checked, wanted = as_text(reason, "reason", longest=500), as_id(command_id, "command_id")
    try:
        yield from commands.cancel(scope, domain, wanted, checked)
    except InvalidOperationError:
        record = (yield from scope.store.find(wanted, as_name(domain, "domain")))[0]
        if record.status not in _LIVE:
            raise
    else:
        return CommandStatus.CANCELED
    body = msgspec.json.encode(_Body(domain, wanted, CancelRequest(checked, scope.by))).decode()
    yield TOGETHER
    # Of several requests the first one counts.
    request = Document(KIND, _key(domain, wanted), 0, "asked", None, body)
    asked = yield from scope.store.put_document(request)
    yield from scope.store.announce(TOPIC)
    if asked:
        yield from record_action(scope, CANCEL, f"{domain} {wanted}", checked)
    return CommandStatus.IN_PROGRESS


def open_requests(scope: Scope, domains: Sequence[str]) -> Op[dict[int, CancelRequest]]:
    """The commands of these domains that run and are to stop, by sequence. Requests whose command
    waits again are carried out here, and those whose command has ended are dropped."""
    running: dict[int, CancelRequest] = {}
    requests: list[tuple[str, _Body]] = []
    after: str | None = None
    while page := (yield from scope.store.list_documents(KIND, after=after)):
        requests += readable(page, lambda d: (d.key, _decoder.decode(d.body)))
        after = page[-1].key
    if requests:
        yield TOGETHER
    for key, asked in requests:
        if asked.domain not in domains:
            continue
        records = yield from scope.store.find(asked.command_id, asked.domain)
        if records and records[0].status is CommandStatus.IN_PROGRESS:
            running[records[0].sequence] = asked.request
            continue
        if records and records[0].status is CommandStatus.PENDING:
            try:
                yield from scope.store.cancel(
                    asked.domain, asked.command_id, asked.request.reason, asked.request.actor
                )
            except InvalidOperationError:  # somebody began with it just now
                running[records[0].sequence] = asked.request
                continue
            yield from commands.reply_to_sender(scope, asked.domain, asked.command_id)
        yield from scope.store.delete_document(KIND, key)
    return running


def withdraw(scope: Scope, domain: str, command_id: UUID) -> Op[None]:
    """An operator lets it be tried again, which counts more than an earlier wish to cancel it."""
    if (yield from scope.store.delete_document(KIND, _key(domain, command_id))):
        yield from scope.store.announce(TOPIC)


def _key(domain: str, command_id: UUID) -> str:
    return f"{domain} {command_id}"
