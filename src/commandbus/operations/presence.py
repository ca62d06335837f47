"""Which workers are there: what they report about themselves, and which of these reports are true."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from commandbus.domain.moment import SECOND, as_datetime
from commandbus.domain.page import Page
from commandbus.domain.presence import WorkerInfo, WorkerRequest
from commandbus.operations.pages import list_named
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op, autocommit
from commandbus.store.sessions import QUIET_SECONDS

KIND = "worker"
REQUESTS = "worker.request"
"""What operators asked of workers, by the name of the worker."""
HEARTBEAT = 120.0
"""Seconds between two reports of a worker whose process others see in their list of processes."""
MISSED_MAX = 2.5
"""A worker is gone when so many reports are missing, unless its end is known before."""
LATE_SECONDS = 5.0
"""So long after the end of its lease a worker that died counts as gone."""

_decoder = msgspec.json.Decoder(WorkerInfo)
_request_decoder = msgspec.json.Decoder(WorkerRequest)


def decode_request(document: Document | None) -> WorkerRequest:
    """What a document asks of its worker; one that cannot be read asks for nothing."""
    found = [] if document is None else readable([document], lambda d: _request_decoder.decode(d.body))
    return found[0] if found else WorkerRequest()


def heartbeat(scope: Scope, info: WorkerInfo, lease_seconds: float) -> float:
    """Seconds until a worker has to report itself again: rarely, where its end is known without it."""
    if info.session:
        return QUIET_SECONDS
    if scope.store.capabilities.one_machine:
        return HEARTBEAT
    return min(HEARTBEAT, (lease_seconds + LATE_SECONDS) / MISSED_MAX)


def report_worker(scope: Scope, info: WorkerInfo, version: int, again: float = HEARTBEAT) -> Op[int]:
    """Report that a worker is alive; its next report follows after `again` seconds. `version` is what
    the last report returned, 0 for the first."""
    now = yield from scope.store.now()
    info = msgspec.structs.replace(info, seen_at=as_datetime(now))
    until = now + int(again * MISSED_MAX * SECOND)
    body = msgspec.json.encode(info).decode()
    if (yield from scope.store.put_document(Document(KIND, info.name, version, "live", until, body))):
        return version + 1
    present = yield from scope.store.get_document(KIND, info.name)
    return present.version if present else 0


@autocommit
def forget_worker(scope: Scope, name: str, *, goes_on: bool = False) -> Op[None]:
    """Remove a worker that has stopped, and the requests to it unless it `goes_on` under its name."""
    yield from scope.store.delete_document(KIND, name)
    if not goes_on:
        yield from scope.store.delete_document(REQUESTS, name)


def forget_dead_workers(scope: Scope) -> Op[int]:
    """Drop workers that have not reported themselves for long, with what was asked of them; returns how
    many."""
    dead = yield from scope.store.due_documents(KIND)
    for document in dead:
        yield from scope.store.delete_document(KIND, document.key)
        yield from scope.store.delete_document(REQUESTS, document.key)
    return len(dead)


def list_workers(
    scope: Scope, *, after: str | None = None, limit: int | None = None
) -> Op[Page[WorkerInfo]]:
    """The workers and process routers that live, by name: all, or with `limit` a page at a time. The
    process of a killed worker is known to be dead at once on its own machine, and on others where
    PostgreSQL knows it by its connection; elsewhere a worker is listed until its reports are missing,
    which is at most 5 seconds after the end of its lease on PostgreSQL."""
    now = yield from scope.store.now()

    def read(documents: Sequence[Document]) -> list[WorkerInfo]:
        live = [d for d in documents if d.due_at is not None and d.due_at > now]
        return readable(live, lambda document: _decoder.decode(document.body))

    found = yield from list_named(scope, KIND, read, after, limit)
    sessions = sorted({info.session for info in found if info.session})
    ended = yield from scope.store.ended_sessions(sessions)
    live = [info for info in found if _lives(scope, info, ended)]
    asked = yield from scope.store.get_documents(REQUESTS, [info.name for info in live])
    requests = {document.key: decode_request(document) for document in asked}
    return Page([_with(info, requests.get(info.name)) for info in live], found.next)


def _with(info: WorkerInfo, request: WorkerRequest | None) -> WorkerInfo:
    """A report cannot vouch for operators: what they asked for is read from their own documents."""
    return msgspec.structs.replace(info, requested=request or WorkerRequest())


def _lives(scope: Scope, info: WorkerInfo, ended: Container[str]) -> bool:
    """Whether a worker that reported itself recently is still there. What the operating system knows
    counts more than a connection, which may be lost for a moment."""
    seen = None if info.process is None else scope.is_seen_alive(info.process)
    return info.session not in ended if seen is None else seen
