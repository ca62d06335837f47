"""Batches as documents: what is kept of them, and how commands join one that is open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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

OPEN = "open"


class BatchBody(msgspec.Struct, omit_defaults=True):
    """The part of a batch that does not change with its commands."""

    total: int
    created_at: int
    name: str | None = None
    custom_data: Any = None
    on_complete: NewCommand | None = None
    completed_at: int | None = None
    status: BatchStatus | None = None
    """Final status; None while the batch is open."""


_decoder = msgspec.json.Decoder(BatchBody)


def kind_of(domain: str) -> str:
    return f"batch:{domain}"


def decode_batch(document: Document) -> BatchBody:
    return _decoder.decode(document.body)


def batch_document(domain: str, batch_id: UUID, version: int, body: BatchBody) -> Document:
    status = OPEN if body.status is None else str(body.status)
    encoded = msgspec.json.encode(body).decode()
    return Document(kind_of(domain), str(batch_id), version, status, None, encoded)


def require_batch(scope: Scope, domain: str, batch_id: UUID) -> Op[tuple[Document, BatchBody]]:
    document = yield from scope.store.get_document(kind_of(domain), str(batch_id))
    if document is None:
        raise BatchNotFoundError(domain, batch_id)
    return document, decode_batch(document)


def join_batches(
    scope: Scope, commands: Sequence[NewCommand], insert: Op[list[SendResult]]
) -> Op[list[SendResult]]:
    """Send commands that belong to open batches, whose totals grow in the same transaction."""
    results = yield from insert
    joined = Counter(
        (command.domain, command.batch_id)
        for command, result in zip(commands, results, strict=True)
        if command.batch_id is not None and not result.duplicate
    )
    for (domain, batch_id), count in sorted(joined.items(), key=str):
        assert batch_id is not None
        yield from grow_batch(scope, domain, batch_id, count)
    return results


def grow_batch(scope: Scope, domain: str, batch_id: UUID, count: int) -> Op[None]:
    """So many more belong to an open batch."""
    while True:
        document, body = yield from require_open(scope, domain, batch_id)
        body.total += count
        changed = batch_document(domain, batch_id, document.version, body)
        if (yield from scope.store.put_document(changed)):
            return


def require_open(scope: Scope, domain: str, batch_id: UUID) -> Op[tuple[Document, BatchBody]]:
    document, body = yield from require_batch(scope, domain, batch_id)
    if body.status is not None:
        raise InvalidOperationError(
            f"Batch {batch_id} is {body.status}; only an open batch takes more commands."
        )
    return document, body
