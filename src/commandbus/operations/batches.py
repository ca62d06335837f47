"""Batches: many commands that belong together, and one durable completion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID, uuid5

import msgspec

from commandbus.domain import payload
from commandbus.domain.batch import (
    BatchCounts,
    BatchRecord,
    BatchStatus,
    final_status,
    is_complete,
)
from commandbus.domain.cause import running
from commandbus.domain.command import Command, CommandRecord, SendRequest
from commandbus.domain.counts import as_items
from commandbus.domain.ids import as_id, as_optional_id
from commandbus.domain.lifecycle import FINAL, PARKED, Cancellation, CommandStatus
from commandbus.domain.moment import SECOND, as_datetime, as_optional_datetime, as_seconds
from commandbus.domain.names import as_member, as_name, as_reason, as_text
from commandbus.domain.page import LIMIT_MAX, Page, as_limit
from commandbus.errors import InvalidArgumentError, InvalidOperationError
from commandbus.operations.actions import record_action, recorded
from commandbus.operations.batch_documents import (
    KIND,
    OPEN,
    BatchBody,
    batch_document,
    decode_batch,
    require_batch,
)
from commandbus.operations.canceling import cancel
from commandbus.operations.commands import query_commands
from commandbus.operations.scope import Flow, Scope, Send
from commandbus.operations.sending import encode_request, send_many
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op, Wake
from commandbus.store.records import Capacity, CommandFilter, NewCommand

LOOKS_MAX = 20
"""How often one page of a list looks further for batches that match."""

_NOT_OF_A_COMPLETION = (
    "unique_key",
    "unique",
    "sender",
    "batch_id",
    "command_id",
    "idempotency_key",
)


class CreateBatchResult(msgspec.Struct, frozen=True):
    batch_id: UUID
    total: int
    command_ids: list[UUID]
    """In the order of the requests."""


class AddToBatchResult(msgspec.Struct, frozen=True):
    batch_id: UUID
    command_ids: list[UUID]
    """In the order of the requests."""


BatchRef = UUID | str | CreateBatchResult | AddToBatchResult | BatchRecord
"""A batch: its id, what its creation or an addition to it returned, or its record."""


def _key_of(batch: BatchRef) -> UUID:
    if isinstance(batch, CreateBatchResult | AddToBatchResult | BatchRecord):
        return batch.batch_id
    return as_id(batch, "batch_id")


class CancelBatchResult(msgspec.Struct, frozen=True):
    """How many commands of a batch were canceled, and how; see `cancel`."""

    batch_id: UUID
    canceled: int = 0
    """They waited and have ended."""
    canceled_parked: int = 0
    """They were parked and have ended."""
    stop_requested: int = 0
    """They run and are asked to stop."""

    @property
    def total(self) -> int:
        return self.canceled + self.canceled_parked + self.stop_requested


def create_batch(
    scope: Scope,
    requests: Iterable[SendRequest[Any]],
    *,
    batch_id: UUID | str | None = None,
    name: str | None = None,
    custom_data: Any = None,
    on_complete: SendRequest | None = None,
) -> Op[CreateBatchResult]:
    """Create a batch and send its commands, to any domains: all of it or, on any error, nothing.

    When the last of them has ended, `on_complete` is sent, exactly once, with the batch's id in its
    headers; its handler gets the results with `context.batch_results()`. A parked command holds the
    batch open until an operator has decided. Raises InvalidArgumentError for an empty batch,
    InvalidOperationError when the id is taken.
    """
    key = as_optional_id(batch_id, "batch_id") or scope.new_id()
    cause = running.get()
    members = [
        msgspec.structs.replace(encode_request(scope, _member(request), cause), batch_id=key)
        for request in as_items(requests, "requests")
    ]
    if not members:
        raise InvalidArgumentError("A batch needs at least one command.")
    payload.encode(custom_data, what="custom_data")
    body = BatchBody(
        len(members),
        0,
        tuple(sorted({member.domain for member in members})),
        None if name is None else as_text(name, "name"),
        custom_data,
    )
    _set_completion(scope, body, on_complete, cause)
    return _create(scope, key, body, members)


def _member(request: SendRequest[Any]) -> SendRequest[Any]:
    if not isinstance(request, SendRequest):
        raise InvalidArgumentError(
            f"A batch takes requests: calls of typed commands, or SendRequest objects, not {request!r}."
        )
    if request.unique_key is not None or request.unique is not None or request.sender is not None:
        raise InvalidArgumentError(
            "A command of a batch has no unique_key, unique or sender: a batch counts every one of "
            "its commands. Send it alone instead."
        )
    return request


def _set_completion(
    scope: Scope, body: BatchBody, request: SendRequest | None, cause: Command[Any] | None
) -> None:
    """Keep the completion as it will be sent. Its lifetime begins with its send."""
    if request is None:
        return
    if not isinstance(request, SendRequest):
        raise InvalidArgumentError(f"on_complete must be a SendRequest, not {request!r}.")
    for option in _NOT_OF_A_COMPLETION:
        if getattr(request, option) is not None:
            raise InvalidArgumentError(
                f"on_complete has no {option}: the batch sends it exactly once, with an id of its own. "
                f"Remove it with .options({option}=None)."
            )
    encoded = encode_request(scope, request, cause)
    if request.expires is not None:
        body.expires = int(as_seconds(request.expires, "expires") * SECOND)
        encoded = msgspec.structs.replace(encoded, expires_at=None)
    body.on_complete = encoded


def _create(
    scope: Scope, batch_id: UUID, body: BatchBody, members: Sequence[NewCommand]
) -> Op[CreateBatchResult]:
    yield from _open(scope, batch_id, body)
    yield from scope.insert(members, Capacity(scope.settings.max_pending))
    if scope.actor is not None:
        yield from record_action(scope, "create_batch", str(batch_id))
    return CreateBatchResult(batch_id, len(members), [member.command_id for member in members])


def open_batch(
    scope: Scope,
    batch_id: UUID,
    name: str | None,
    custom_data: Any,
    on_complete: SendRequest | None,
) -> Op[None]:
    """Create a batch without members, which join in the same transaction."""
    payload.encode(custom_data, what="custom_data")
    label = None if name is None else as_text(name, "name")
    body = BatchBody(0, 0, (), label, custom_data)
    _set_completion(scope, body, on_complete, running.get())
    return _open(scope, batch_id, body)


def _open(scope: Scope, batch_id: UUID, body: BatchBody) -> Op[None]:
    body.created_at = yield from scope.store.now()
    if not (yield from scope.store.put_document(batch_document(batch_id, 0, body))):
        raise InvalidOperationError(f"Batch {batch_id} exists already; nothing was sent.")


def add_to_batch(
    scope: Scope, batch_id: BatchRef, requests: Iterable[SendRequest[Any]]
) -> Op[AddToBatchResult]:
    """Send more commands of an open batch, to any domains. Raises BatchNotFoundError, or
    InvalidOperationError when the batch is complete."""
    key = _key_of(batch_id)
    members = [
        msgspec.structs.replace(_member(request), batch_id=key)
        for request in as_items(requests, "requests")
    ]
    if not members:
        raise InvalidArgumentError("Give at least one command to add.")
    return _add(scope, key, members)


def _add(scope: Scope, batch_id: UUID, requests: list[SendRequest[Any]]) -> Op[AddToBatchResult]:
    results = yield from send_many(scope, requests)
    return AddToBatchResult(batch_id, [result.command_id for result in results])


def get_batch(scope: Scope, batch_id: BatchRef) -> Op[BatchRecord | None]:
    """A batch with its counts, or None. The counts are always those of its commands."""
    key = _key_of(batch_id)
    document = yield from scope.store.get_document(KIND, str(key))
    if document is None:
        return None
    records = yield from _records(scope, [document])
    return records[0] if records else None


def list_batches(
    scope: Scope,
    *,
    domain: str | None = None,
    status: BatchStatus | str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Op[Page[BatchRecord]]:
    """Batches, newest first, a page at a time; with `domain`, those that have commands in it. A page
    may be short and still have a next one: it looks at a bounded number of batches."""
    wanted = as_member(BatchStatus, status)
    as_limit(limit)
    where = None if domain is None else as_name(domain, "domain")
    cursor = None if after is None else as_text(after, "after")
    is_open = wanted in (BatchStatus.PENDING, BatchStatus.IN_PROGRESS)
    stored = None if wanted is None else OPEN if is_open else str(wanted)
    found: list[BatchRecord] = []
    for _ in range(LOOKS_MAX):
        documents = yield from scope.store.list_documents(
            KIND, status=stored, after=cursor, limit=limit, backwards=True
        )
        near = [
            document
            for document, body in readable(documents, lambda d: (d, decode_batch(d)))
            if where is None or where in body.domains
        ]
        records = yield from _records(scope, near)
        found += [record for record in records if wanted in (None, record.status)]
        if len(found) >= limit:
            return Page(found[:limit], str(found[limit - 1].batch_id))
        cursor = documents[-1].key if len(documents) == limit else None
        if cursor is None:
            break
    return Page(found, cursor)


def list_batch_commands(
    scope: Scope,
    batch_id: BatchRef,
    *,
    domain: str | None = None,
    status: CommandStatus | str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Op[Page[CommandRecord]]:
    """The commands of a batch, newest first, a page at a time; with `domain`, those in it. Raises
    BatchNotFoundError."""
    key = _key_of(batch_id)
    yield from require_batch(scope, key)
    return (
        yield from query_commands(
            scope, domain=domain, batch_id=key, status=status, after=after, limit=limit
        )
    )


def cancel_batch(
    scope: Scope, batch_id: BatchRef, *, reason: str | None = None
) -> Flow[CancelBatchResult]:
    """Cancel every command of a batch that has not ended, as `cancel` does: waiting and parked ones
    end as CANCELED, running ones are asked to stop. Says how many of each. Raises
    BatchNotFoundError."""
    checked = as_reason(reason) or f"the batch was canceled by {scope.by}"
    key, cursor = _key_of(batch_id), None
    done = dict.fromkeys(Cancellation, 0)
    while True:
        page = yield list_batch_commands(scope, key, after=cursor, limit=500)
        for record in page:
            if record.status in FINAL:
                continue
            try:
                op = cancel(scope, record.command_id, domain=record.domain, reason=checked)
                if not any(done.values()):  # one record for the batch, with that of the first command
                    op = recorded(scope, op, "cancel_batch", str(key), checked)
                done[(yield Send(op))] += 1
            except InvalidOperationError:  # it ended meanwhile
                continue
        cursor = page.next
        if cursor is None:
            yield Send(close_batches(scope, [key]))
            return CancelBatchResult(
                key,
                done[Cancellation.CANCELED],
                done[Cancellation.CANCELED_PARKED],
                done[Cancellation.STOP_REQUESTED],
            )


def close_batches(scope: Scope, batches: Iterable[UUID]) -> Op[int]:
    """Complete those whose commands have all ended; each exactly once, however many workers look."""
    closed = 0
    for batch_id in batches:
        document = yield from scope.store.get_document(KIND, str(batch_id))
        if document is None or document.status != OPEN:
            continue
        counts = (yield from scope.store.batch_counts([batch_id])).get(batch_id, BatchCounts())
        bodies = readable([document], decode_batch)
        if bodies and is_complete(counts, bodies[0].total):
            closed += yield from _close(scope, batch_id, document, counts)
    return closed


def close_open_batches(scope: Scope, domains: Collection[str]) -> Op[int]:
    """The fallback: look at all open batches that have commands in these domains. Returns how many
    are still open."""
    left = 0
    after: str | None = None
    while page := (yield from scope.store.list_documents(KIND, status=OPEN, after=after)):
        after = page[-1].key
        opened = readable(page, lambda document: (UUID(document.key), decode_batch(document)))
        ours = [batch_id for batch_id, body in opened if not set(body.domains).isdisjoint(domains)]
        left += len(ours) - (yield from close_batches(scope, ours))
    return left


def leave_batches(scope: Scope, domain: str | None) -> Op[None]:
    """Before a domain, or everything, is purged: forget open batches that have no commands elsewhere,
    and count their commands in the others as canceled."""
    after: str | None = None
    while page := (yield from scope.store.list_documents(KIND, status=OPEN, after=after)):
        after = page[-1].key
        for document, body in readable(page, lambda document: (document, decode_batch(document))):
            batch_id = UUID(document.key)
            if domain is None or set(body.domains) == {domain}:
                yield from scope.store.delete_document(KIND, document.key)
                yield from _count_nothing(scope, batch_id)
            elif domain in body.domains:
                yield from _count_canceled(scope, batch_id, domain)


def _count_nothing(scope: Scope, batch_id: UUID) -> Op[None]:
    """Take back what was counted: the id may be used again."""
    for known in (yield from scope.store.batch_counts([batch_id])).values():
        back = BatchCounts(-known.completed, -known.failed, -known.canceled, -known.parked)
        yield from scope.store.add_batch_counts({batch_id: back}, "")


def _count_canceled(scope: Scope, batch_id: UUID, domain: str) -> Op[None]:
    gone, before = BatchCounts(), None
    while True:
        wanted = CommandFilter(domain, batch_id=batch_id, before=before, limit=LIMIT_MAX)
        records = yield from scope.store.query(wanted)
        for record in records:
            if record.status not in FINAL:
                gone = gone.plus(BatchCounts(canceled=1, parked=-(record.status is PARKED)))
        if len(records) < LIMIT_MAX:
            break
        before = records[-1].sequence
    if gone != BatchCounts():
        yield from scope.store.add_batch_counts({batch_id: gone}, "")
        yield Wake(BATCHES)


def _close(scope: Scope, batch_id: UUID, document: Document, counts: BatchCounts) -> Op[int]:
    body = decode_batch(document)
    body.status = final_status(counts)
    body.completed_at = yield from scope.store.now()
    # From here on the completion is a command. A copy here would outlive its erasure and retention.
    completion, body.on_complete = body.on_complete, None
    changed = batch_document(batch_id, document.version, body)
    if not (yield from scope.store.put_document(changed)):
        return 0
    if completion is not None:
        headers = payload.decode(completion.headers or "{}")
        headers |= {"batch_id": str(batch_id), "batch_status": str(body.status)}
        timed = msgspec.structs.replace(
            completion,
            command_id=uuid5(completion.command_id, str(batch_id)),
            headers=payload.encode(headers, what="headers"),
        )
        if body.expires is not None:
            due = max(body.completed_at, timed.due_at or 0) + timed.delay
            timed = msgspec.structs.replace(timed, expires_at=due + body.expires)
        yield from scope.insert([timed], Capacity())
    return 1


def _records(scope: Scope, documents: Sequence[Document]) -> Op[list[BatchRecord]]:
    batches = readable(documents, lambda d: (UUID(d.key), decode_batch(d)))
    counts = yield from scope.store.batch_counts([batch_id for batch_id, _ in batches])
    records: list[BatchRecord] = []
    for batch_id, body in batches:
        known = counts.get(batch_id, BatchCounts())
        status = body.status
        if status is None:
            begun = known.ended or known.parked or (yield from _any_running(scope, batch_id))
            status = BatchStatus.IN_PROGRESS if begun else BatchStatus.PENDING
        records.append(
            BatchRecord(
                batch_id,
                body.domains,
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


def _any_running(scope: Scope, batch_id: UUID) -> Op[bool]:
    running = CommandStatus.IN_PROGRESS
    wanted = CommandFilter(batch_id=batch_id, status=running, limit=1)
    return bool((yield from scope.store.query(wanted)))
