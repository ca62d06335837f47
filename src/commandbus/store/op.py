"""Ops: storage work as generators that yield statements and are sent rows.

An op never waits. It yields what it wants executed and gets the rows back; a session runs it, blocking
or awaiting, and is the only code that touches a database. So each operation is written once for both
runtimes, statements are data that can be timed, traced or explained, and a test can feed rows by hand.
The memory engine's ops yield nothing but wake-ups.

An op is one transaction on every engine: all of it happens, or nothing. An op composed of others with
`yield from` is one transaction, too. The only exceptions are marked with `@autocommit` where they are
defined, and only when a session runs them directly.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import msgspec

from commandbus.errors import StoreUnavailable

P = ParamSpec("P")
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
    """Complete by itself: in an op that commits by itself (see `autocommit`) it is a transaction of its
    own, committed before the op goes on. After one, such an op may catch an error and ask for more."""


class Read(Atomic, frozen=True):
    """Changes nothing and locks nothing: an op that has not changed anything yet needs no transaction
    for it."""


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


class Undone(StoreUnavailable):
    """Another transaction was in the way of an op, so all of it was undone: the same op, built again,
    can succeed."""


AFTER_COMMIT = (Wake, Log)
"""What sessions collect, and pass to `WakeHub.tell` after the commit."""

Step = Statement | Wake | Log
Op = Generator[Step, Rows, T]


class Autocommit(Generator[Step, Rows, T]):
    """An op that commits by itself when a session runs it. `yield from` sees only the op inside, so
    that in another op it is part of that op's transaction."""

    __slots__ = ("op",)

    def __init__(self, op: Op[T]) -> None:
        self.op = op

    def __iter__(self) -> Op[T]:
        return self.op

    def send(self, value: Rows) -> Step:
        return self.op.send(value)

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Step:
        return self.op.throw(kind, value, trace) if value is not None else self.op.throw(kind)

    def close(self) -> None:
        self.op.close()


def autocommit(build: Callable[P, Op[T]]) -> Callable[P, Op[T]]:
    """Mark a function that makes an op: run directly by a session, the op needs no transaction around
    it, because each of its statements is complete by itself, or because it says where it commits. It
    must be correct when it ends after any of its commits."""

    @wraps(build)
    def mark(*args: P.args, **kwargs: P.kwargs) -> Op[T]:
        return Autocommit(build(*args, **kwargs))

    return mark


def unmarked(op: Op[T]) -> Op[T]:
    """The op itself: driving it through its mark would cost a call for every statement."""
    return cast("Op[T]", op.op) if isinstance(op, Autocommit) else op


def drive(op: Op[T], execute: Callable[[Statement], Rows], wakes: list[Wake | Log]) -> T:
    """Run an op to its end with a blocking `execute`; what follows the commit is collected.

    An error of `execute` is thrown into the op, which may catch it or let it pass.
    """
    op = unmarked(op)
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
