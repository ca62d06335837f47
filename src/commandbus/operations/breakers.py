"""Circuit breakers as the fleet shares them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from commandbus.domain.breaker import BreakerSnapshot, BreakerState
from commandbus.domain.breaker_board import BreakerBoard, Change
from commandbus.domain.moment import SECOND, Duration, as_datetime, as_seconds
from commandbus.domain.names import as_name, as_reason
from commandbus.domain.page import Page
from commandbus.operations.actions import record_action
from commandbus.operations.pages import list_named
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op

KIND = "breaker"
TOPIC = "commandbus.breakers"


class _Body(msgspec.Struct, frozen=True):
    failures: int
    changed_at: int
    changed_by: str
    reason: str | None = None


_decoder = msgspec.json.Decoder(_Body)


def list_breakers(
    scope: Scope, *, after: str | None = None, limit: int | None = None
) -> Op[Page[BreakerSnapshot]]:
    """Every breaker that ever opened, by target: all, or with `limit` a page at a time."""
    now = yield from scope.store.now()

    def read(documents: Sequence[Document]) -> list[BreakerSnapshot]:
        return readable(documents, lambda document: _snapshot(document, now))

    return (yield from list_named(scope, KIND, read, after, limit))


def get_breaker(scope: Scope, target: str) -> Op[BreakerSnapshot | None]:
    """What the fleet knows about a target; None when its breaker never opened."""
    now = yield from scope.store.now()
    document = yield from scope.store.get_document(KIND, as_name(target, "target"))
    return None if document is None else _snapshot(document, now)


def open_breaker(
    scope: Scope,
    target: str,
    cooldown: Duration = 300.0,
    *,
    reason: str | None = None,
) -> Op[None]:
    """Let nothing through to a target for `cooldown` seconds; all processes follow within a second."""
    seconds = as_seconds(cooldown, "cooldown", minimum=0.001)
    because = as_reason(reason)
    yield from _put(scope, target, BreakerState.OPEN, seconds, 0, scope.by, because)
    yield from record_action(scope, "open_breaker", target, because)


def reset_breaker(scope: Scope, target: str, *, reason: str | None = None) -> Op[None]:
    """Close a breaker by hand; all processes follow within a second."""
    because, name = as_reason(reason), as_name(target, "target")
    present = yield from scope.store.get_document(KIND, name)
    if present is None or present.status == BreakerState.CLOSED:
        return  # it is closed for the whole fleet
    yield from _put(scope, name, BreakerState.CLOSED, 0.0, 0, scope.by, because)
    yield from record_action(scope, "reset_breaker", name, because)


class BreakerExchange(msgspec.Struct):
    """What was sent to the fleet and received from it; to be believed when it is committed."""

    changes: list[Change] = []
    heard: list[tuple[str, int, BreakerState, float]] = []

    def confirm(self, breakers: BreakerBoard) -> None:
        breakers.shared(self.changes)
        for target, version, state, seconds in self.heard:
            breakers.follow(target, version, state, seconds)


def share(scope: Scope, breakers: BreakerBoard, worker: str) -> Op[BreakerExchange]:
    """Tell the fleet what this process found, and hear what others found."""
    shared = BreakerExchange(changes=breakers.changes())
    for change in shared.changes:
        seen = breakers.seen(change.target)
        yield from _put(
            scope, change.target, change.state, change.seconds, change.failures, worker, None, seen
        )
    for target in breakers.in_use():
        document = yield from scope.store.get_document(KIND, target)
        if document is not None:
            now = yield from scope.store.now()
            left = ((document.due_at or now) - now) / SECOND
            open_now = document.status == BreakerState.OPEN and left > 0
            state = BreakerState.OPEN if open_now else BreakerState.CLOSED
            if open_now or document.status == BreakerState.CLOSED:
                shared.heard.append((target, document.version, state, left))
    return shared


def _put(
    scope: Scope,
    target: str,
    state: BreakerState,
    seconds: float,
    failures: int,
    by: str,
    reason: str | None,
    seen: int | None = None,
) -> Op[None]:
    """`seen` is the version that a worker knew, whose word does not end what was opened since then."""
    name = as_name(target, "target")
    while True:
        now = yield from scope.store.now()
        present = yield from scope.store.get_document(KIND, name)
        version = present.version if present else 0
        until = now + int(seconds * SECOND) if state is BreakerState.OPEN else None
        if seen is not None and seen < version and _open_until(present) > (until or now):
            return
        body = msgspec.json.encode(_Body(failures, now, by, reason)).decode()
        if (yield from scope.store.put_document(Document(KIND, name, version, state, until, body))):
            return


def _open_until(document: Document | None) -> int:
    if document is None or document.status != BreakerState.OPEN:
        return 0
    return document.due_at or 0


def _snapshot(document: Document, now: int) -> BreakerSnapshot:
    body = _decoder.decode(document.body)
    state = BreakerState(document.status)
    if state is BreakerState.OPEN and (document.due_at or 0) <= now:
        state = BreakerState.HALF_OPEN
    return BreakerSnapshot(
        document.key,
        state,
        body.failures,
        None if document.due_at is None else as_datetime(document.due_at),
        as_datetime(body.changed_at),
        body.changed_by,
        body.reason,
    )
