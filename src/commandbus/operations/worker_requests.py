"""Requests of operators to workers: quiet, resume, stop, and change the concurrency.

A request is a document beside the presence of its worker, written by operators alone. It is announced,
so the worker carries it out at once, and it ends with the worker: a worker that is started again begins
with what its settings say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from commandbus.domain.counts import as_count, as_items
from commandbus.domain.moment import as_datetime
from commandbus.domain.names import as_name, as_reason, as_text
from commandbus.domain.presence import Asked, WorkerInfo, WorkerRequest
from commandbus.errors import InvalidArgumentError, InvalidOperationError, NotFoundError
from commandbus.operations.actions import record_action
from commandbus.operations.presence import KIND as PRESENCE
from commandbus.operations.presence import REQUESTS, decode_request, list_workers
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document
from commandbus.store.op import Op, autocommit
from commandbus.store.sessions import WORKER_REQUESTS

CONCURRENCY_MAX = 10_000
SHOWN_MAX = 5
"""Names of workers in an error."""

Change = Callable[[WorkerInfo, WorkerRequest, Asked], WorkerRequest]


def quiet_workers(
    scope: Scope,
    workers: Iterable[str] = (),
    *,
    domain: str | None = None,
    host: str | None = None,
    reason: str | None = None,
) -> Op[list[str]]:
    """Ask workers to claim nothing more until they are resumed; what they hold they finish. They are
    named, in full or by the beginning or the end of their names, or they are all that serve a domain,
    run on a host, or both. Returns their names. Raises NotFoundError and InvalidOperationError for
    workers that do not live, and InvalidArgumentError when it is not said which."""

    def change(worker: WorkerInfo, before: WorkerRequest, asked: Asked) -> WorkerRequest:
        return before if before.quiet else msgspec.structs.replace(before, quiet=asked)

    return (yield from _ask(scope, "quiet_worker", change, workers, domain, host, reason))


def resume_workers(
    scope: Scope,
    workers: Iterable[str] = (),
    *,
    domain: str | None = None,
    host: str | None = None,
    reason: str | None = None,
) -> Op[list[str]]:
    """Let quiet workers claim again; named as for `quiet_workers`. Returns their names."""

    def change(worker: WorkerInfo, before: WorkerRequest, asked: Asked) -> WorkerRequest:
        return msgspec.structs.replace(before, quiet=None)

    return (yield from _ask(scope, "resume_worker", change, workers, domain, host, reason))


def stop_workers(
    scope: Scope,
    workers: Iterable[str] = (),
    *,
    domain: str | None = None,
    host: str | None = None,
    reason: str | None = None,
) -> Op[list[str]]:
    """Ask workers to end as after SIGTERM: what runs may finish within their shutdown_timeout, the rest
    goes back. `commandbus worker` does not start a worker process again that was stopped so, and ends
    with code 0 when none is left. Named as for `quiet_workers`. Returns their names."""

    def change(worker: WorkerInfo, before: WorkerRequest, asked: Asked) -> WorkerRequest:
        return msgspec.structs.replace(before, stop=asked)

    return (yield from _ask(scope, "stop_worker", change, workers, domain, host, reason))


def set_worker_concurrency(
    scope: Scope,
    concurrency: int,
    workers: Iterable[str] = (),
    *,
    domain: str | None = None,
    host: str | None = None,
    reason: str | None = None,
) -> Op[list[str]]:
    """Ask workers to run so many handlers at once; what runs goes on. The configured number takes the
    request back, and so does a restart. A worker that follows its load keeps to the number meanwhile.
    Named as for `quiet_workers`. Returns their names. Raises InvalidArgumentError for more than the
    pool of a worker allows."""
    as_count(concurrency, "concurrency", highest=CONCURRENCY_MAX)

    def change(worker: WorkerInfo, before: WorkerRequest, asked: Asked) -> WorkerRequest:
        most = worker.concurrency_max
        if most is not None and concurrency > most:
            raise InvalidArgumentError(
                f"Worker {worker.name} can run at most {most} at once: its URL says pool_size={most}, "
                f"and each slot may need a connection. Give at most {most}, or start it with more."
            )
        if concurrency == worker.configured_concurrency:
            return msgspec.structs.replace(before, concurrency=None, resized=None)
        if concurrency == before.concurrency:
            return before
        return msgspec.structs.replace(before, concurrency=concurrency, resized=asked)

    return (yield from _ask(scope, "resize_worker", change, workers, domain, host, reason))


@autocommit
def request_of(scope: Scope, worker: str) -> Op[WorkerRequest]:
    """What was asked of a worker."""
    found = yield from scope.store.get_document(REQUESTS, worker)
    return decode_request(found)


def _ask(
    scope: Scope,
    action: str,
    change: Change,
    workers: Iterable[str],
    domain: str | None,
    host: str | None,
    reason: str | None,
) -> Op[list[str]]:
    because = as_reason(reason)
    chosen = yield from _chosen(scope, workers, domain, host)
    if action != "stop_worker" and (domain is not None or host is not None):
        # Of all, those that stop are left alone; a worker that was named is refused below.
        chosen = [worker for worker in chosen if worker.requested.stop is None] or chosen
    asked = Asked(scope.by, as_datetime((yield from scope.store.now())), because)
    is_new = False
    for worker in chosen:
        present = yield from scope.store.get_document(REQUESTS, worker.name)
        before = decode_request(present)
        if before.stop is not None and action != "stop_worker":
            raise InvalidOperationError(
                f"Worker {worker.name} was asked to stop by {before.stop.actor}, which cannot be taken "
                "back; start another one."
            )
        after = before if before.stop is not None else change(worker, before, asked)
        if after == before:
            continue
        is_new = True
        yield from _write(scope, worker.name, present, after)
        subject = f"{worker.name}: {_words(worker, before)} -> {_words(worker, after)}"
        yield from record_action(scope, action, subject, because)
    if is_new:
        yield from scope.store.announce(WORKER_REQUESTS)
    return [worker.name for worker in chosen]


def _write(scope: Scope, worker: str, present: Document | None, request: WorkerRequest) -> Op[None]:
    if request == WorkerRequest():
        yield from scope.store.delete_document(REQUESTS, worker)
        return
    version, body = present.version if present else 0, msgspec.json.encode(request).decode()
    document = Document(REQUESTS, worker, version, request.state, None, body)
    if not (yield from scope.store.put_document(document)):
        raise InvalidOperationError(f"Another operator asked {worker} for something; try again.")


def _words(worker: WorkerInfo, request: WorkerRequest) -> str:
    """What holds with a request, for the list of actions."""
    slots = request.concurrency or worker.configured_concurrency or worker.concurrency
    return f"{request.state}, {slots} at once"


def _chosen(
    scope: Scope, workers: Iterable[str], domain: str | None, host: str | None
) -> Op[list[WorkerInfo]]:
    wanted = [as_text(one, "worker", longest=100) for one in as_items(workers, "workers")]
    if bool(wanted) == (domain is not None or host is not None):
        raise InvalidArgumentError(
            "Say which workers: give their names, or a domain, a host or both for all of them there."
        )
    live = yield from list_workers(scope)
    if wanted:
        chosen: dict[str, WorkerInfo] = {}
        for one in wanted:
            found = yield from _named(scope, one, live)
            chosen[found.name] = found
        return list(chosen.values())
    where = f"domain {as_name(domain, 'domain')!r}" if domain is not None else ""
    where += " and " if domain is not None and host is not None else ""
    where += f"host {as_text(host, 'host')!r}" if host is not None else ""
    there = [
        one
        for one in live
        if not one.processes and domain in (None, *one.domains) and host in (None, one.host)
    ]
    if not there:
        known = ", ".join(sorted({one.host for one in live} if host else _domains(live))[:SHOWN_MAX])
        hint = f"live workers are on {known}" if host else f"live workers serve {known}"
        raise NotFoundError(f"No live worker of {where}; {hint if known else 'none lives at all'}.")
    return there


def _domains(workers: Iterable[WorkerInfo]) -> set[str]:
    return {name for worker in workers for name in worker.domains}


def _named(scope: Scope, wanted: str, live: Sequence[WorkerInfo]) -> Op[WorkerInfo]:
    """The one live worker of this name, or whose name begins or ends so."""
    found = [one for one in live if one.name == wanted] or [
        one for one in live if one.name.startswith(wanted) or one.name.endswith(wanted)
    ]
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:SHOWN_MAX])
        raise InvalidArgumentError(f"{wanted!r} is part of several names: {names}. Give more of one.")
    if not found:
        raise (yield from _missing(scope, wanted, live))
    (worker,) = found
    if worker.processes:
        raise InvalidOperationError(
            f"{worker.name} is a process router: it has no slots for commands, and ends with its "
            "process. Stop the process or the worker that it belongs to."
        )
    return worker


def _missing(scope: Scope, wanted: str, live: Sequence[WorkerInfo]) -> Op[Exception]:
    """Why a name means no live worker."""
    after: str | None = None
    while page := (yield from scope.store.list_documents(PRESENCE, after=after)):
        for document in page:
            if document.key.startswith(wanted) or document.key.endswith(wanted):
                return InvalidOperationError(
                    f"Worker {document.key} does not live: its process is dead, or cut off from the "
                    "store. There is nothing to ask of it; what it held comes back by itself."
                )
        after = page[-1].key
    names = ", ".join(one.name for one in live[:SHOWN_MAX])
    hint = f"There are {names}" if names else "None lives at all"
    return NotFoundError(f"There is no worker {wanted!r}: it has ended, or has another name. {hint}.")
