"""Promotion: live commands move from one store to another, such as from a file to a server.

A command is taken out of its queue in the same transaction that keeps it as a document, so that no
worker of this store can run it any more; it is added to the other store, where its id makes a second
time harmless; then the document is dropped. After a crash at any point the next promotion goes on: what
is still a document is added again, or found to be there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from commandbus.domain.audit import LINKED
from commandbus.errors import ConfigurationError, InvalidOperationError
from commandbus.operations.actions import record_action
from commandbus.operations.ledger import Link, link, of_event
from commandbus.operations.parked_notes import KIND as CASE
from commandbus.operations.parked_notes import case_key, forget_case
from commandbus.operations.scope import Scope
from commandbus.store.moving import (
    KIND,
    ArrivingStore,
    DepartingStore,
    Departure,
    Moving,
    Survey,
)
from commandbus.store.op import Op, autocommit
from commandbus.store.records import ClaimRequest

PIECE = 500
_decoder = msgspec.json.Decoder(Moving)


def survey(scope: Scope) -> Op[Survey]:
    """What there is to move. Raises ConfigurationError where nothing can be moved from."""
    return (yield from _departing(scope).survey())


@autocommit
def take_back(scope: Scope) -> Op[None]:
    """What workers held that are gone waits again."""
    yield from scope.store.claim(ClaimRequest((), 0, "promotion", 1.0))


def depart(scope: Scope, to: str, after: int) -> Op[Departure]:
    """Take out a piece of what waits or is parked. Raises InvalidOperationError while commands run."""
    found = yield from _departing(scope).survey()
    if found.running:
        raise InvalidOperationError(
            f"{found.running} commands are running; stop the workers of this store, and promote again."
        )
    departure = yield from _departing(scope).depart(to, after, PIECE)
    if departure.gone:
        yield from record_action(scope, "promote", f"{departure.gone} commands to {to}")
    return departure


def list_moving(scope: Scope) -> Op[dict[str, Moving]]:
    """A piece of what was taken out and has not surely arrived, by the keys of its documents."""
    found = yield from scope.store.list_documents(KIND, limit=PIECE)
    moving = {document.key: _decoder.decode(document.body) for document in found}
    cases = yield from scope.store.get_documents(CASE, [_case_key(one) for one in moving.values()])
    by_key = {case.key: case for case in cases}
    return {
        key: msgspec.structs.replace(one, case=by_key.get(_case_key(one)))
        for key, one in moving.items()
    }


def arrive(scope: Scope, commands: Sequence[Moving], origin: str) -> Op[int]:
    """Add what was taken out elsewhere; what has come before is left alone. Returns how many were new.
    What operators did to them is linked here, too, as it arrived."""
    check_arriving(scope)
    new: list[Moving] = yield from scope.store.arrive(commands)  # type: ignore[attr-defined]
    links: list[Link] = []
    for one in new:
        if one.case is not None:
            yield from scope.store.put_document(msgspec.structs.replace(one.case, version=0))
        if any(kind in LINKED for kind, _, _ in one.audit):
            trail = yield from scope.store.audit_trail(one.command.command_id, one.command.domain)
            links += [of_event(scope, event) for event in trail if event.event_type in LINKED]
    yield from link(scope, links)
    if new:
        yield from record_action(scope, "promote", f"{len(new)} commands from {origin}")
    return len(new)


def confirm(scope: Scope, moving: Mapping[str, Moving]) -> Op[None]:
    """Forget what has arrived."""
    for key, one in moving.items():
        yield from forget_case(scope, one.command.domain, one.command.command_id)
        yield from scope.store.delete_document(KIND, key)


def check_arriving(scope: Scope) -> None:
    """Raises ConfigurationError where nothing can be moved to."""
    if not isinstance(scope.store, ArrivingStore):
        raise ConfigurationError("Commands are moved to a postgresql:// store; name one as the target.")


def _case_key(moving: Moving) -> str:
    return case_key(moving.command.domain, moving.command.command_id)


def _departing(scope: Scope) -> DepartingStore:
    if not isinstance(scope.store, DepartingStore):
        raise ConfigurationError("Commands are moved from a sqlite:/// file; name one as the source.")
    return scope.store
