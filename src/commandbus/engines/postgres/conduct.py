"""How an op becomes transactions: decided here once, waited for in the sessions.

`conduct` turns an op into the statements that really go to the server: atomic ones as they are, the
others between BEGIN and COMMIT, which are added before the first of them. A session performs what is
yielded, blocking or awaiting, and throws in what went wrong.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from commandbus.engines.postgres.failures import Conflict
from commandbus.engines.postgres.statements import Atomic, Boundary, Undo
from commandbus.store.op import (
    AFTER_COMMIT,
    Log,
    Op,
    Rows,
    Statement,
    Together,
    Undone,
    Wake,
)

T = TypeVar("T")

BEGIN = Statement("begin isolation level read committed")
COMMIT = Statement("commit")
ROLLBACK = Statement("rollback")

Steps = Generator[Statement, Rows, T]


def conduct(op: Op[T], wakes: list[Wake | Log], *, own: bool = True) -> Steps[T]:
    """Run an op in transactions of its own, or with `own=False` inside one that is somebody else's;
    wake-ups are collected, to be told after the commit."""
    transaction = _Transaction(own)
    try:
        step = next(op)
        while True:
            if isinstance(step, AFTER_COMMIT):
                wakes.append(step)
                step = op.send(())
                continue
            try:
                if isinstance(step, Atomic) and transaction.untouched:
                    rows = yield step  # what `perform` would do, for most sends
                else:
                    rows = yield from transaction.perform(step)
            except Exception as error:  # the op decides; unhandled, it comes straight back
                yield from transaction.undo(error)
                step = op.throw(error)
            else:
                step = op.send(rows)
    except StopIteration as done:
        if not transaction.untouched:
            yield from transaction.commit()
        return done.value  # type: ignore[no-any-return]
    except Exception as error:
        yield from transaction.undo(error)
        if isinstance(error, Conflict) and transaction.is_whole:
            raise Undone(str(error)) from error
        raise
    finally:
        op.close()


class _Transaction:
    """The transaction of an op, begun when a statement needs one.

    An error undoes it before the op learns of the error: what an op does after catching one begins
    anew. Only where everything belongs together, nothing can follow.
    """

    def __init__(self, own: bool) -> None:
        self._own = own
        self._begun = False
        self._together = False
        self._doom: Exception | None = None
        self.untouched = True
        """Nothing was said yet that matters for what follows."""

    @property
    def is_whole(self) -> bool:
        """Nothing of the op is committed before the end of it."""
        return self._own and self._together

    def perform(self, step: Statement | Together) -> Steps[Rows]:
        self.untouched = False
        if isinstance(step, Together):
            self._together = True
            return ()
        if isinstance(step, Boundary):
            if not self._together:
                yield from self.commit()
            return ()
        if self._doom is not None:
            raise self._doom
        if isinstance(step, Undo):
            if self._begun:
                self._begun = False
                yield ROLLBACK
            return ()
        if self._own and not self._begun and (self._together or not isinstance(step, Atomic)):
            yield BEGIN
            self._begun = True
        return (yield step)

    def commit(self) -> Steps[None]:
        if self._doom is not None:
            raise self._doom
        if self._begun:
            self._begun = False
            yield COMMIT

    def undo(self, error: Exception) -> Steps[None]:
        self.untouched = False
        if self._together or not self._own:
            self._doom = error
        if self._begun:
            self._begun = False
            yield ROLLBACK
