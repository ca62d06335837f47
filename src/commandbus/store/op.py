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
from inspect import isgeneratorfunction
from types import CodeType
from typing import Any, TypeVar

import msgspec

from commandbus.errors import StoreUnavailable

T = TypeVar("T")
Build = TypeVar("Build", bound=Callable[..., Any])

Row = Any
"""One row: a tuple, which engines unpack into names where they get it."""

Rows = Sequence[Row]


def scalar(rows: Rows) -> Any:
    """The value of a statement that answers with one row of one column."""
    ((value,),) = rows
    return value


class Statement(msgspec.Struct, frozen=True):
    """One SQL statement and its parameters; with `many`, `params` is a list of parameter rows."""

    sql: str
    params: Any = ()
    many: bool = False


class Autocommit(Statement, frozen=True):
    """Complete by itself: in an op that commits by itself (see `autocommit`) it is a transaction of its
    own, committed before the op goes on. After one, such an op may catch an error and ask for more."""


class Read(Autocommit, frozen=True):
    """Changes nothing and locks nothing: an op that has not changed anything yet needs no transaction
    for it."""


class Wake(msgspec.Struct, frozen=True):
    """Wake a waiter of `domain`, once this transaction is committed: work is ready now
    or becomes due in `due_in` seconds."""

    domain: str
    due_in: float | None = None
    everyone: bool = False
    """All that wait, because not every worker can take it."""


class Log(msgspec.Struct, frozen=True):
    """Write a line to a log once this transaction is committed: one that is undone leaves none."""

    logger: str
    line: str


class Undone(StoreUnavailable):
    """Another transaction was in the way of an op, so all of it was undone: the same op, built again,
    can succeed."""


AFTER_COMMIT = (Wake, Log)
"""What sessions collect, and pass to `WakeHub.after_commit`."""

Step = Statement | Wake | Log
Op = Generator[Step, Rows, T]


_autocommit: set[CodeType] = set()


def autocommit(build: Build) -> Build:
    """Mark a generator function that is an op: run directly by a session, it needs no transaction.
    Each of its statements is complete by itself, or it says where it commits. It must be correct when
    it ends after any of its commits.

    The mark is the function's code, so that it costs an op nothing, and does not count inside another
    op, of which a session sees only the outermost generator.
    """
    _autocommit.add(_code_of(build))
    return build


def commits_by_itself(op: Op[Any]) -> bool:
    """Whether the function that made an op is marked with `autocommit`."""
    return getattr(op, "gi_code", None) in _autocommit


_repeatable: set[CodeType] = set()


def repeatable(build: Build) -> Build:
    """Mark a generator function that is an op: if a machine crashes and its commit is lost, running
    it again has the same effect, so its commit need not wait for the disk. The mark counts as that of
    `autocommit` does."""
    _repeatable.add(_code_of(build))
    return build


def _code_of(build: Callable[..., Any]) -> CodeType:
    if not isgeneratorfunction(build):
        raise TypeError(f"{build} is no generator function; mark the one whose op it returns")
    return build.__code__


def is_repeatable(op: Op[Any]) -> bool:
    """Whether the function that made an op is marked with `repeatable`."""
    return getattr(op, "gi_code", None) in _repeatable


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
