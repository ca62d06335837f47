"""Failpoints: a test steps in before or after any statement of an engine, commits included.

Nothing in the engines knows of them: the functions through which every statement passes are replaced
while `installed()` lasts, so in production there is not even a question whether one is set.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg

from commandbus.engines.postgres import connections
from commandbus.engines.postgres.statements import queries
from commandbus.engines.sqlite import lane
from commandbus.engines.sqlite import store as sqlite
from tests.support.statements import made

When = Literal["before", "after"]
Action = Literal["raise", "kill", "cut", "freeze", "cancel"]
ACTIONS: tuple[Action, ...] = ("raise", "kill", "cut", "freeze", "cancel")


@dataclass
class Failpoint:
    """Something that happens when a named statement is about to be executed, or was."""

    when: When
    statement: str
    action: Action
    nth: int = 1
    """At which time the statement comes by."""
    hits: int = 0
    sprung: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"{self.action} {self.when} {self.statement}"


@dataclass
class Passing:
    """A statement that comes by, and how to harm its connection."""

    when: When
    statement: str
    cut: Callable[[], None]
    lost: Callable[[], Exception]
    """The error of a driver whose connection is gone."""


def names() -> dict[str, str]:
    """Names of statements by their text, for both engines."""
    known = {sql: name for name, sql in vars(queries("commandbus")).items()}
    known |= {sql: name for name, sql in made().items()}
    known |= {sql: name for name, sql in vars(sqlite.SQL).items()}
    return known


def name_of(sql: str, known: dict[str, str]) -> str:
    return known.get(sql) or re.sub(r"\W+", " ", sql).split()[0].lower()


@contextmanager
def installed(meet: Callable[[Passing], None]) -> Iterator[None]:
    """`meet` is called for every statement of any engine of this process."""
    known = names()
    run = connections.run
    init = lane.Lane.__init__

    def passing(when: When, connection: Any, statement: Any) -> None:
        meet(Passing(when, name_of(statement.sql, known), lambda: _cut(connection), _lost_postgres))

    async def run_with_points(driver: Any, connection: Any, statement: Any, origin: str) -> Any:
        passing("before", connection, statement)
        rows = await run(driver, connection, statement, origin)
        passing("after", connection, statement)
        return rows

    def with_points(self: Any, name: str, connect: Any, *rest: Any) -> None:
        connected: Any = lambda: _Connection(connect(), meet, known)  # noqa: E731  # in its place
        init(self, name, connected, *rest)

    connections.run = run_with_points
    lane.Lane.__init__ = with_points  # type: ignore[method-assign]
    try:
        yield
    finally:
        connections.run = run
        lane.Lane.__init__ = init  # type: ignore[method-assign]


class _Connection:
    """A SQLite connection whose statements are met."""

    def __init__(self, real: Any, meet: Callable[[Passing], None], known: dict[str, str]) -> None:
        self._real, self._meet, self._known = real, meet, known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, sql: str, *params: Any) -> Any:
        return self._around(self._real.execute, sql, *params)

    def executemany(self, sql: str, *params: Any) -> Any:
        return self._around(self._real.executemany, sql, *params)

    def _around(self, run: Any, sql: str, *params: Any) -> Any:
        def passing(when: When) -> Passing:
            # A file has no line that could be cut: what comes closest is an error of the disk.
            return Passing(when, name_of(sql, self._known), _cut_file, _lost_file)

        self._meet(passing("before"))
        answer = run(sql, *params)
        self._meet(passing("after"))
        return answer


def springing(point: Failpoint, cancel: Callable[[], None]) -> Callable[[Passing], None]:
    """Does what a failpoint says, once. `cancel` cancels what the caller awaits right now."""

    def meet(passing: Passing) -> None:
        if (passing.when, passing.statement) != (point.when, point.statement):
            return
        point.hits += 1
        if point.hits != point.nth:
            return
        point.sprung.set()
        match point.action:
            case "raise":
                raise passing.lost()
            case "cut":
                passing.cut()
                if point.when == "after":
                    raise passing.lost()
            case "cancel":
                cancel()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)

    return meet


def _cut(connection: Any) -> None:
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as end:
        end.shutdown(socket.SHUT_RDWR)


def _cut_file() -> None:
    raise _lost_file()


def _lost_postgres() -> Exception:
    return psycopg.OperationalError("the connection is lost")


def _lost_file() -> Exception:
    return sqlite3.OperationalError("disk I/O error")
