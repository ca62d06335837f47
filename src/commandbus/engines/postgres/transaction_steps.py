"""How an op becomes transactions: decided here once, waited for in the sessions.

`in_transactions` turns an op into the statements that really go to the server, between BEGIN and
COMMIT. Only in an op that commits by itself (`store.op.autocommit`) and in reads, statements of the
class `Autocommit` go as they are, and a boundary commits what came before. A session performs what is
yielded, blocking or awaiting, and throws in what went wrong.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from commandbus.engines.postgres.failures import Conflict
from commandbus.engines.postgres.statements import Autocommit, Boundary, Ending, Undo
from commandbus.store.op import (
    AFTER_COMMIT,
    Log,
    Op,
    Read,
    Rows,
    Statement,
    Undone,
    Wake,
    commits_by_itself,
)

T = TypeVar("T")

BEGIN = Statement("begin isolation level read committed")
COMMIT = Statement("commit")
ROLLBACK = Ending("rollback")
"""Without a cursor: after a rollback through one, the driver removes all that was prepared on the
connection, what it did not prepare itself included."""

Steps = Generator[Statement, Rows, T]


def in_transactions(
    op: Op[T], wakes: list[Wake | Log], *, own: bool = True, read: bool = False
) -> Steps[T]:
    """Run an op in a transaction of its own, or with `own=False` inside that of a caller; wake-ups are
    collected, to be sent after the commit. A read changes nothing, so it needs no transaction."""
    transaction = _Transaction(own, whole=not (read or commits_by_itself(op)))
    try:
        step = next(op)
        while True:
            if isinstance(step, AFTER_COMMIT):
                wakes.append(step)
                step = op.send(())
                continue
            try:
                if transaction.untouched and isinstance(step, Autocommit):
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
    """The transaction of an op, begun with its first statement that may change or lock something.

    An error undoes it before the op learns of the error. In an op that commits by itself, a new
    transaction begins with what the op does after catching one; in any other, nothing can follow.
    """

    def __init__(self, own: bool, whole: bool) -> None:
        self._own, self._whole = own, whole
        self._begun = False
        self._error: Exception | None = None
        self.untouched = not (own and whole)
        """The next `Autocommit` statement needs no BEGIN before it."""

    @property
    def is_whole(self) -> bool:
        """Nothing of the op is committed before the end of it."""
        return self._own and self._whole

    def perform(self, step: Statement) -> Steps[Rows]:
        self.untouched = False
        if isinstance(step, Boundary):
            if not self._whole:
                yield from self.commit()
            return ()
        if self._error is not None:
            raise self._error
        if isinstance(step, Undo):
            if self._whole:
                raise AssertionError("an op that undoes a part of itself must commit by itself")
            if self._begun:
                self._begun = False
                yield ROLLBACK
            return ()
        if self._own and not self._begun and not isinstance(step, Read if self._whole else Autocommit):
            yield BEGIN
            self._begun = True
        return (yield step)

    def commit(self) -> Steps[None]:
        if self._error is not None:
            raise self._error
        if self._begun:
            self._begun = False
            yield COMMIT

    def undo(self, error: Exception) -> Steps[None]:
        self.untouched = False
        if self._whole or not self._own:
            self._error = error
        if self._begun:
            self._begun = False
            yield ROLLBACK
