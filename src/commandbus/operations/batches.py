"""Batches: many commands that belong together, and one durable completion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID, uuid5

import msgspec

from commandbus.domain import payload
from commandbus.domain.batch import (
    BatchCommand,
    BatchCounts,
    BatchRecord,
    BatchStatus,
    final_status,
    is_complete,
)
from commandbus.domain.cause import running
from commandbus.domain.command import CommandRecord, SendRequest
from commandbus.domain.counts import as_count, as_items
from commandbus.domain.ids import as_id, as_optional_id
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import as_datetime, as_optional_datetime
from commandbus.domain.names import as_name, as_text
from commandbus.domain.page import Page
from commandbus.errors import InvalidArgumentError, InvalidOperationError
from commandbus.operations.actions import recorded
from commandbus.operations.cancelling import cancel_waiting
from commandbus.operations.commands import LIMIT_MAX, encode_request, query_commands, send_many
from commandbus.operations.membership import (
    OPEN,
    BatchBody,
    batch_document,
    decode_batch,
    kind_of,
    require_batch,
)
from commandbus.operations.scope import Flow, Scope, Send
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op
from commandbus.store.records import Capacity, CommandFilter, NewCommand


class CreateBatchResult(msgspec.Struct, frozen=True):
    batch_id: UUID
    total: int
    command_ids: list[UUID]


class AddToBatchResult(msgspec.Struct, frozen=True):
    batch_id: UUID
    command_ids: list[UUID]
    """In the order of the commands."""


def create_batch(
    scope: Scope,
    domain: str,
    commands: Iterable[BatchCommand | SendRequest[Any]],
    *,
    batch_id: UUID | str | None = None,
    name: str | None = None,
    custom_data: Any = None,
    on_complete: SendRequest | None = None,
) -> Op[CreateBatchResult]:
    """Create a batch and send its commands: all of it or, on any error, nothing.

    When the last of them has ended, `on_complete` is sent, exactly once, with the batch's id in its
    headers. A parked command holds the batch open until an operator has decided. Raises
    InvalidArgumentError for an empty batch, InvalidOperationError when the id is taken.
    """
    as_name(domain, "domain")
    key = as_optional_id(batch_id, "batch_id") or scope.new_id()
    cause = running.get()
    members = [
        msgspec.structs.replace(encode_request(scope, _member(command, domain), cause), batch_id=key)
        for command in as_items(commands, "commands")
    ]
    if not members:
        raise InvalidArgumentError("A batch needs at least one command.")
    payload.encode(custom_data, what="custom_data")
    body = BatchBody(
        len(members),
        0,
        None if name is None else as_text(name, "name"),
        custom_data,
        None if on_complete is None else encode_request(scope, on_complete, cause),
    )
    return _create(scope, domain, key, body, members)


def _member(command: BatchCommand | SendRequest[Any], domain: str) -> SendRequest[Any]:
    if isinstance(command, SendRequest):
        if command.domain != domain:
            raise InvalidArgumentError(
                f"{command.domain}.{command.command_type} cannot join a batch of {domain!r}: the "
                "commands of a batch are of one domain."
            )
        if command.unique_key is not None or command.unique is not None or command.sender is not None:
            raise InvalidArgumentError(
                "A command of a batch has no unique_key, unique or sender: a batch counts every one of "
                "its commands. Send it alone instead."
            )
        return command
    if not isinstance(command, BatchCommand):
        raise InvalidArgumentError(
            f"A batch takes requests, such as calls of typed commands, or BatchCommand objects, not "
            f"{command!r}."
        )
    return command.in_domain(domain)


def _create(
    scope: Scope, domain: str, batch_id: UUID, body: BatchBody, members: Sequence[NewCommand]
) -> Op[CreateBatchResult]:
    body.created_at = yield from scope.store.now()
    document = batch_document(domain, batch_id, 0, body)
    if not (yield from scope.store.put_document(document)):
        raise InvalidOperationError(f"Batch {batch_id} exists already in domain {domain!r}.")
    yield from scope.insert(members, Capacity(scope.settings.max_pending))
    return CreateBatchResult(batch_id, len(members), [member.command_id for member in members])


def open_batch(
    scope: Scope,
    domain: str,
    batch_id: UUID,
    name: str | None,
    custom_data: Any,
    on_complete: SendRequest | None,
) -> Op[None]:
    """Create a batch without members, which join in the same transaction."""
    payload.encode(custom_data, what="custom_data")
    label = None if name is None else as_text(name, "name")
    told = None if on_complete is None else encode_request(scope, on_complete)
    return _open(scope, domain, batch_id, BatchBody(0, 0, label, custom_data, told))


def _open(scope: Scope, domain: str, batch_id: UUID, body: BatchBody) -> Op[None]:
    body.created_at = yield from scope.store.now()
    if not (yield from scope.store.put_document(batch_document(domain, batch_id, 0, body))):
        raise InvalidOperationError(f"Batch {batch_id} exists already in domain {domain!r}.")


def add_to_batch(
    scope: Scope, domain: str, batch_id: UUID | str, commands: Iterable[BatchCommand | SendRequest[Any]]
) -> Op[AddToBatchResult]:
    """Send more commands of an open batch. Raises BatchNotFoundError, or InvalidOperationError when
    the batch is complete."""
    key = as_id(batch_id, "batch_id")
    requests = [
        msgspec.structs.replace(_member(command, domain), batch_id=key)
        for command in as_items(commands, "commands")
    ]
    if not requests:
        raise InvalidArgumentError("Give at least one command to add.")
    return _add(scope, key, requests)


def _add(scope: Scope, batch_id: UUID, requests: list[SendRequest[Any]]) -> Op[AddToBatchResult]:
    results = yield from send_many(scope, requests)
    return AddToBatchResult(batch_id, [result.command_id for result in results])


def get_batch(scope: Scope, domain: str, batch_id: UUID | str) -> Op[BatchRecord | None]:
    """A batch with its counts, or None. The counts are always those of its commands."""
    key = as_id(batch_id, "batch_id")
    document = yield from scope.store.get_document(kind_of(domain), str(key))
    if document is None:
        return None
    records = yield from _records(scope, domain, [document])
    return records[0] if records else None


def list_batches(
    scope: Scope,
    domain: str,
    *,
    status: BatchStatus | str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Op[Page[BatchRecord]]:
    """The batches of a domain, newest first, a page at a time."""
    try:
        wanted = None if status is None else BatchStatus(status)
    except ValueError:
        known = ", ".join(BatchStatus)
        raise InvalidArgumentError(f"Unknown status {status!r}; use one of {known}.") from None
    as_count(limit, "limit", highest=LIMIT_MAX)
    is_open = wanted in (BatchStatus.PENDING, BatchStatus.IN_PROGRESS)
    stored = None if wanted is None else OPEN if is_open else str(wanted)
    page = yield from scope.store.list_documents(
        kind_of(as_name(domain, "domain")),
        status=stored,
        after=None if after is None else as_text(after, "after"),
        limit=limit,
        backwards=True,
    )
    records = yield from _records(scope, domain, page)
    chosen = [record for record in records if wanted is None or record.status is wanted]
    return Page(chosen, page[-1].key if len(page) == limit else None)


def list_batch_commands(
    scope: Scope,
    domain: str,
    batch_id: UUID | str,
    *,
    status: CommandStatus | str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Op[Page[CommandRecord]]:
    """The commands of a batch, newest first, a page at a time. Raises BatchNotFoundError."""
    key = as_id(batch_id, "batch_id")
    yield from require_batch(scope, domain, key)
    return (
        yield from query_commands(
            scope, domain=domain, batch_id=key, status=status, after=after, limit=limit
        )
    )


def cancel_batch(
    scope: Scope,
    domain: str,
    batch_id: UUID | str,
    reason: str = "the batch was canceled",
) -> Flow[int]:
    """Cancel every command of a batch that has not begun; returns how many. Running ones finish."""
    as_text(reason, "reason", longest=500)
    key, canceled, cursor = as_id(batch_id, "batch_id"), 0, None
    while True:
        page = yield list_batch_commands(
            scope, domain, key, status=CommandStatus.PENDING, after=cursor, limit=500
        )
        for record in page:
            try:
                op: Op[Any] = cancel_waiting(scope, record, reason)
                if not canceled:  # one record for the batch, in the transaction of the first command
                    op = recorded(scope, op, "cancel_batch", f"{domain} {key}", reason)
                yield Send(op)
                canceled += 1
            except InvalidOperationError:  # it began meanwhile
                continue
        cursor = page.next
        if cursor is None:
            yield Send(close_batches(scope, [(domain, key)]))
            return canceled


def close_batches(scope: Scope, batches: Iterable[tuple[str, UUID]]) -> Op[int]:
    """Complete those whose commands have all ended; each exactly once, whoever looks."""
    closed = 0
    for domain, batch_id in batches:
        document = yield from scope.store.get_document(kind_of(domain), str(batch_id))
        if document is None or document.status != OPEN:
            continue
        counts = (yield from scope.store.batch_counts([batch_id])).get(batch_id, BatchCounts())
        bodies = readable([document], decode_batch)
        if bodies and is_complete(counts, bodies[0].total):
            closed += yield from _close(scope, domain, batch_id, document, counts)
    return closed


def close_open_batches(scope: Scope, domains: Iterable[str]) -> Op[int]:
    """The last net: look at all open batches of these domains. Returns how many are still open."""
    left = 0
    for domain in domains:
        after: str | None = None
        while page := (
            yield from scope.store.list_documents(kind_of(domain), status=OPEN, after=after)
        ):
            after = page[-1].key
            left += len(page)
            ids = readable(page, lambda document: UUID(document.key))
            left -= yield from close_batches(scope, [(domain, batch_id) for batch_id in ids])
    return left


def _close(
    scope: Scope, domain: str, batch_id: UUID, document: Document, counts: BatchCounts
) -> Op[int]:
    body = decode_batch(document)
    body.status = final_status(counts)
    body.completed_at = yield from scope.store.now()
    changed = batch_document(domain, batch_id, document.version, body)
    if not (yield from scope.store.put_document(changed)):
        return 0
    if body.on_complete is not None:
        headers = payload.decode(body.on_complete.headers or "{}")
        headers |= {
            "batch_id": str(batch_id),
            "batch_domain": domain,
            "batch_status": str(body.status),
        }
        told = msgspec.structs.replace(
            body.on_complete,
            command_id=uuid5(body.on_complete.command_id, f"{domain}|{batch_id}"),
            headers=payload.encode(headers, what="headers"),
        )
        yield from scope.insert([told], Capacity())
    return 1


def _records(scope: Scope, domain: str, documents: Sequence[Document]) -> Op[list[BatchRecord]]:
    batches = readable(documents, lambda d: (UUID(d.key), decode_batch(d)))
    counts = yield from scope.store.batch_counts([batch_id for batch_id, _ in batches])
    records: list[BatchRecord] = []
    for batch_id, body in batches:
        known = counts.get(batch_id, BatchCounts())
        status = body.status
        if status is None:
            begun = known.ended or known.parked or (yield from _any_running(scope, domain, batch_id))
            status = BatchStatus.IN_PROGRESS if begun else BatchStatus.PENDING
        records.append(
            BatchRecord(
                domain,
                batch_id,
                body.name,
                body.custom_data,
                status,
                body.total,
                known.completed,
                known.failed,
                known.canceled,
                known.parked,
                as_datetime(body.created_at),
                as_optional_datetime(body.completed_at),
            )
        )
    return records


def _any_running(scope: Scope, domain: str, batch_id: UUID) -> Op[bool]:
    running = CommandStatus.IN_PROGRESS
    wanted = CommandFilter(domain=domain, batch_id=batch_id, status=running, limit=1)
    return bool((yield from scope.store.query(wanted)))
