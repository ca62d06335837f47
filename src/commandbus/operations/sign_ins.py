"""Failed sign-ins and ended sessions of dashboards, where all of their processes see them.

The dashboard counts failures under a fixed number of keys, and all of it is forgotten when it is due.
Keys are digests: neither names nor addresses are kept here. Each statement is
complete by itself, so processes that change the same documents never deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from commandbus.domain.moment import SECOND
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document
from commandbus.store.op import Op, autocommit

FAILURES, TRUSTED, ENDED = "sign_in.failures", "sign_in.trusted", "sign_in.ended"
DUE_PIECE = 100
TRIES_MAX = 5
"""How often a count is read again because another process has changed it meanwhile."""


class Failures(msgspec.Struct, frozen=True):
    count: int
    at: int
    """Of the last one, in microseconds of the store's clock."""


_decoder = msgspec.json.Decoder(Failures)


def key_of(*parts: str) -> str:
    return sha256(msgspec.json.encode(parts)).hexdigest()


def failures_of(scope: Scope, keys: Sequence[str]) -> Op[dict[str, tuple[int, float]]]:
    """How many sign-ins failed, and how many seconds ago the last one did."""
    now = yield from scope.store.now()
    documents = yield from scope.store.get_documents(FAILURES, keys)
    found = ((document.key, _decoded(document)) for document in documents if not _is_due(document, now))
    return {key: (one.count, (now - one.at) / SECOND) for key, one in found if one is not None}


@autocommit
def add_failure(scope: Scope, keys: Sequence[str], keep_seconds: float) -> Op[None]:
    """Count one more under each key. A count that others change all the time is left to them."""
    now = yield from scope.store.now()
    due_at = now + int(keep_seconds * SECOND)
    for key in keys:
        for _ in range(TRIES_MAX):
            known = yield from scope.store.get_document(FAILURES, key)
            before = None if known is None or _is_due(known, now) else _decoded(known)
            body = msgspec.json.encode(Failures(before.count + 1 if before else 1, now)).decode()
            version = known.version if known else 0
            document = Document(FAILURES, key, version, "", due_at, body)
            if (yield from scope.store.put_document(document)):
                break
    yield from _forget_due(scope, FAILURES)


@autocommit
def trust(scope: Scope, account: str, place: str, keep_seconds: float) -> Op[None]:
    """An account was signed in to from a place: its failures are over, and those of others do not
    count there."""
    yield from scope.store.delete_document(FAILURES, account)
    yield from _keep(scope, TRUSTED, place, keep_seconds)


def is_trusted(scope: Scope, place: str) -> Op[bool]:
    return (yield from _is_kept(scope, TRUSTED, place))


@autocommit
def end_session(scope: Scope, session: str, keep_seconds: float) -> Op[None]:
    yield from _keep(scope, ENDED, session, keep_seconds)


def has_ended(scope: Scope, session: str) -> Op[bool]:
    return (yield from _is_kept(scope, ENDED, session))


def _keep(scope: Scope, kind: str, key: str, seconds: float) -> Op[None]:
    now = yield from scope.store.now()
    known = yield from scope.store.get_document(kind, key)
    version, due_at = known.version if known else 0, now + int(seconds * SECOND)
    yield from scope.store.put_document(Document(kind, key, version, "", due_at, "{}"))
    yield from _forget_due(scope, kind)


def _is_kept(scope: Scope, kind: str, key: str) -> Op[bool]:
    now = yield from scope.store.now()
    document = yield from scope.store.get_document(kind, key)
    return document is not None and not _is_due(document, now)


def _forget_due(scope: Scope, kind: str) -> Op[None]:
    for document in (yield from scope.store.due_documents(kind, DUE_PIECE)):
        yield from scope.store.delete_document(kind, document.key)


def _is_due(document: Document, now: int) -> bool:
    return document.due_at is not None and document.due_at <= now


def _decoded(document: Document) -> Failures | None:
    try:
        return _decoder.decode(document.body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
