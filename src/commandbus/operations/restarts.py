"""Restarts of ill workers: kept for a month, for whoever wonders what happened."""

from __future__ import annotations

import msgspec

from commandbus.domain.moment import SECOND, as_datetime
from commandbus.domain.presence import WorkerRestart
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document
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


def list_restarts(scope: Scope) -> Op[list[WorkerRestart]]:
    """The restarts of workers by their watchdogs within the last month, oldest first."""
    found: list[WorkerRestart] = []
    after: str | None = None
    while page := (yield from scope.store.list_documents(KIND, after=after)):
        found += [_decoder.decode(document.body) for document in page]
        after = page[-1].key
    return found
