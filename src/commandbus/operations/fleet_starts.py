"""When workers were started: kept for a month, as marks of deploys in charts, also of fleets that are
gone."""

from __future__ import annotations

from datetime import datetime

import msgspec

from commandbus.domain.moment import SECOND
from commandbus.domain.presence import FleetStart, WorkerInfo
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op

KIND = "start"
KEPT_SECONDS = 30 * 86_400.0
LISTED = 500
DOMAINS_MAX = 50

TRIES_MAX = 20
"""Workers of a fleet start together, and each counts itself in the same document."""
_decoder = msgspec.json.Decoder(FleetStart)


def minute_of(moment: datetime) -> int:
    """Workers of one version that were started in the same one are one start."""
    return int(moment.timestamp()) // 60


def record_start(scope: Scope, worker: WorkerInfo) -> Op[None]:
    """Note that a worker was started."""
    now = yield from scope.store.now()
    key = f"{minute_of(worker.started_at):012} {worker.version}"
    for _ in range(TRIES_MAX):
        present = yield from scope.store.get_document(KIND, key)
        found = readable([present] if present else [], lambda d: _decoder.decode(d.body))
        start = found[0] if found else FleetStart(worker.started_at, worker.version, 0, ())
        domains = sorted({*start.domains, *worker.domains})[:DOMAINS_MAX]
        start = msgspec.structs.replace(start, workers=start.workers + 1, domains=tuple(domains))
        version, until = present.version if present else 0, now + int(KEPT_SECONDS * SECOND)
        body = msgspec.json.encode(start).decode()
        if (yield from scope.store.put_document(Document(KIND, key, version, "done", until, body))):
            break
    for old in (yield from scope.store.due_documents(KIND)):
        yield from scope.store.delete_document(KIND, old.key)


def list_starts(scope: Scope) -> Op[list[FleetStart]]:
    """The newest starts of workers within the last month, newest first."""
    page = yield from scope.store.list_documents(KIND, limit=LISTED, backwards=True)
    return readable(page, lambda document: _decoder.decode(document.body))
