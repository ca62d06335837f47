"""Ops: storage work as generators that yield statements and are sent rows.

An op never waits. It yields what it wants executed and gets the rows back; a session runs it in one
transaction, blocking or awaiting, and is the only code that touches a database. So each operation is
written once for both runtimes, statements are data that can be timed, traced or explained, and a test
can feed rows by hand. The memory engine's ops yield nothing but wake-ups.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from commandbus.errors import StoreUnavailable

T = TypeVar("T")

Row = Any
"""One row; engines index it by position."""

Rows = Sequence[Row]


class Statement(msgspec.Struct, frozen=True):
    """One SQL statement and its parameters; with `many`, `params` is a list of parameter rows."""

    sql: str
    params: Any = ()
    many: bool = False


class Atomic(Statement, frozen=True):
    """Complete by itself: where an engine commits each statement, a transaction of its own, committed
    before its op goes on. After one, an op may catch an error and still ask for more."""


class Wake(msgspec.Struct, frozen=True):
    """Tell whoever waits for `domain`, once this transaction is committed, that work is ready now
    or becomes due in `due_in` seconds."""

    domain: str
    due_in: float | None = None
    everyone: bool = False
    """All who wait, because not everybody can take it."""


class Log(msgspec.Struct, frozen=True):
    """Write a line to a log once this transaction is committed: one that is undone leaves none."""

    logger: str
    line: str


class Together(msgspec.Struct, frozen=True):
    """All statements of this op commit together, also where an engine could commit each by itself.
    Yielded first, by ops that are put together from several."""


TOGETHER = Together()


class Undone(StoreUnavailable):
    """Another transaction was in the way of an op whose statements commit together, so all of it was
    undone: the same op, built again, can succeed."""


AFTER_COMMIT = (Wake, Log)
"""What sessions collect, and pass to `WakeHub.tell` after the commit."""

Op = Generator[Statement | Wake | Log | Together, Rows, T]


def drive(op: Op[T], execute: Callable[[Statement], Rows], wakes: list[Wake | Log]) -> T:
    """Run an op to its end with a blocking `execute`; what follows the commit is collected.

    An error of `execute` is thrown into the op, which may catch it or let it pass.
    """
    try:
        step = next(op)
        while True:
            if not isinstance(step, Statement):
                if isinstance(step, AFTER_COMMIT):
                    wakes.append(step)
                step = op.send(())
                continue
            try:
                rows = execute(step)
            except Exception as error:  # the op decides; unhandled, it comes straight back
                step = op.throw(error)
            else:
                step = op.send(rows)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        op.close()
