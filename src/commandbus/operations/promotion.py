"""Promotion: live commands move from one store to another, such as from a file to a server.

A command is taken out of its queue in the same transaction that keeps it as a document, so that nobody
can run it here any more; it is added to the other store, where its id makes a second time harmless;
then the document is dropped. After a crash at any point the next promotion goes on: what is still a
document is added again, or found to be there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from commandbus.errors import ConfigurationError, InvalidOperationError
from commandbus.operations.scope import Scope
from commandbus.store.moving import (
    KIND,
    ArrivingStore,
    DepartingStore,
    Departure,
    Moving,
    Survey,
)
from commandbus.store.op import TOGETHER, Op
from commandbus.store.records import ClaimRequest

PIECE = 500
_decoder = msgspec.json.Decoder(Moving)


def survey(scope: Scope) -> Op[Survey]:
    """What there is to move. Raises ConfigurationError where nothing can be moved from."""
    return (yield from _departing(scope).survey())


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
    return (yield from _departing(scope).depart(to, after, PIECE))


def list_moving(scope: Scope) -> Op[dict[str, Moving]]:
    """A piece of what was taken out and has not surely arrived, by the keys of its documents."""
    found = yield from scope.store.list_documents(KIND, limit=PIECE)
    return {document.key: _decoder.decode(document.body) for document in found}


def arrive(scope: Scope, commands: Sequence[Moving]) -> Op[int]:
    """Add what was taken out elsewhere; what has come before is left alone."""
    check_arriving(scope)
    yield TOGETHER
    return (yield from scope.store.arrive(commands))  # type: ignore[attr-defined, no-any-return]


def confirm(scope: Scope, keys: Sequence[str]) -> Op[None]:
    """Forget what has arrived."""
    yield TOGETHER
    for key in keys:
        yield from scope.store.delete_document(KIND, key)


def check_arriving(scope: Scope) -> None:
    """Raises ConfigurationError where nothing can be moved to."""
    if not isinstance(scope.store, ArrivingStore):
        raise ConfigurationError("Commands are moved to a postgresql:// store; name one as the target.")


def _departing(scope: Scope) -> DepartingStore:
    if not isinstance(scope.store, DepartingStore):
        raise ConfigurationError("Commands are moved from a sqlite:/// file; name one as the source.")
    return scope.store
