"""The bus of a Django database joins the transactions of that database, as models do.

Inside `transaction.atomic()` every call of the bus is part of the transaction, in the thread of the
transaction: what it sends is committed or rolled back with the rows of the models, and what it reads
includes what the transaction has sent. So it also works in a `TestCase`, whose transaction never
commits, and on SQLite, where a second connection could not write until the first has ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar, cast

from django.db import connections

from commandbus.operations.scope import Scope
from commandbus.runtimes.threads.bus import SyncCommandBus
from commandbus.store.op import Op
from commandbus.store.session import Engine, Session

T = TypeVar("T")


class _Joining:
    """A session of the engine, or one inside the transaction that this thread has open."""

    def __init__(self, engine: Engine, alias: str) -> None:
        self._engine, self._alias = engine, alias

    def run(self, op: Op[T], *, read: bool = False) -> T:
        if not is_joined(self._alias):
            return self._engine.session.run(op, read=read)
        return self._engine.within(connections[self._alias]).run(op, read=read)


class _JoiningEngine:
    """An engine whose plain session joins; those of workers for claims and settles do not."""

    def __init__(self, engine: Engine, alias: str) -> None:
        self._engine = engine
        self.session: Session = _Joining(engine, alias)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class DjangoBus(SyncCommandBus):
    """The bus in the Django database `alias`: inside `transaction.atomic()` it is part of the
    transaction."""

    def __init__(self, alias: str, url: str, **settings: Any) -> None:
        self._alias = alias
        super().__init__(url, **settings)
        self.engine = cast("Engine", _JoiningEngine(self.engine, alias))

    @property
    def scope(self) -> Scope:
        joined = is_joined(self._alias)
        return replace(self._scope, in_callers_transaction=True) if joined else self._scope

    @scope.setter
    def scope(self, scope: Scope) -> None:
        self._scope = scope


def is_joined(alias: str) -> bool:
    """Whether this thread has a transaction open in a Django database."""
    return bool(connections[alias].in_atomic_block)
