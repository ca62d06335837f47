"""Restarts of unhealthy workers: kept for a month, to explain what happened."""

from __future__ import annotations

import msgspec

from commandbus.domain.moment import SECOND, as_datetime
from commandbus.domain.names import as_text
from commandbus.domain.page import Page, as_limit
from commandbus.domain.presence import WorkerRestart
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op

KIND = "restart"
KEPT_SECONDS = 30 * 86_400.0

_decoder = msgspec.json.Decoder(WorkerRestart)


def record_restart(scope: Scope, restart: WorkerRestart) -> Op[None]:
    """Keep what was restarted and why, with the time of the store."""
    now = yield from scope.store.now()
    body = msgspec.json.encode(msgspec.structs.replace(restart, at=as_datetime(now))).decode()
    until = now + int(KEPT_SECONDS * SECOND)
    document = Document(KIND, f"{now:020} {restart.worker}", 0, "done", until, body)
    yield from scope.store.put_document(document)
    for old in (yield from scope.store.due_documents(KIND)):
        yield from scope.store.delete_document(KIND, old.key)


def list_restarts(
    scope: Scope, *, after: str | None = None, limit: int = 100
) -> Op[Page[WorkerRestart]]:
    """The restarts of workers by their watchdogs within the last month, newest first, a page at a
    time."""
    as_limit(limit)
    page = yield from scope.store.list_documents(
        KIND, after=None if after is None else as_text(after, "after"), limit=limit, backwards=True
    )
    found = readable(page, lambda document: _decoder.decode(document.body))
    return Page(found, page[-1].key if len(page) == limit else None)
