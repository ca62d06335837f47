"""Batches as documents: what is kept of them, and how commands join one that is open."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.batch import BatchStatus
from commandbus.domain.command import SendResult
from commandbus.errors import BatchNotFoundError, InvalidOperationError
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document
from commandbus.store.op import Op
from commandbus.store.records import NewCommand

KIND = "batch"
OPEN = "open"


class BatchBody(msgspec.Struct, omit_defaults=True):
    """The part of a batch that does not change with its commands."""

    total: int
    created_at: int
    domains: tuple[str, ...]
    """In order. A closer looks at the batches of its own domains only."""
    name: str | None = None
    custom_data: Any = None
    on_complete: NewCommand | None = None
    completed_at: int | None = None
    status: BatchStatus | None = None
    """Final status; None while the batch is open."""
    expires: int | None = None
    """Microseconds after its due time at which the completion expires; it is due when it is sent, or
    later."""


_decoder = msgspec.json.Decoder(BatchBody)


def decode_batch(document: Document) -> BatchBody:
    return _decoder.decode(document.body)


def batch_document(batch_id: UUID, version: int, body: BatchBody) -> Document:
    status = OPEN if body.status is None else str(body.status)
    encoded = msgspec.json.encode(body).decode()
    return Document(KIND, str(batch_id), version, status, None, encoded)


def require_batch(scope: Scope, batch_id: UUID) -> Op[tuple[Document, BatchBody]]:
    document = yield from scope.store.get_document(KIND, str(batch_id))
    if document is None:
        raise BatchNotFoundError(batch_id)
    return document, decode_batch(document)


def join_batches(
    scope: Scope, commands: Sequence[NewCommand], insert: Op[list[SendResult]]
) -> Op[list[SendResult]]:
    """Send commands that belong to open batches, whose totals grow in the same transaction."""
    results = yield from insert
    joined: dict[UUID, list[str]] = {}
    for command, result in zip(commands, results, strict=True):
        if command.batch_id is not None and not result.duplicate:
            joined.setdefault(command.batch_id, []).append(command.domain)
    for batch_id, domains in sorted(joined.items()):  # in one order: no deadlock
        yield from grow_batch(scope, batch_id, domains)
    return results


def grow_batch(scope: Scope, batch_id: UUID, domains: Collection[str]) -> Op[None]:
    """Add members, each given by its domain, to an open batch."""
    while True:
        document, body = yield from require_open(scope, batch_id)
        body.total += len(domains)
        body.domains = tuple(sorted({*body.domains, *domains}))
        changed = batch_document(batch_id, document.version, body)
        if (yield from scope.store.put_document(changed)):
            return


def require_open(scope: Scope, batch_id: UUID) -> Op[tuple[Document, BatchBody]]:
    document, body = yield from require_batch(scope, batch_id)
    if body.status is not None:
        raise InvalidOperationError(
            f"Batch {batch_id} is {body.status}; only an open batch takes more commands."
        )
    return document, body
