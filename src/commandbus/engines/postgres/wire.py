"""Sends straight through libpq.

A driver's cursor takes longer than everything else that a lone send needs in its own process. What
senders share has parameters of a few plain kinds and is answered by whole numbers, so it goes out
prepared, as text, without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import psycopg
from psycopg import errors
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from commandbus.engines.postgres.statements import ORIGIN
from commandbus.store.op import Rows

NAMES_MAX = 20
"""Statements that are prepared here on a connection; the driver forgets old ones, this does not."""

_numbers = count()
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Connection(psycopg.Connection[Any]):
    """For threads. `names` are the statements that were prepared on it here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names: dict[str, bytes] = {}

    @property
    def takes_more(self) -> bool:
        """Whether statements are prepared at all, and one more can be."""
        return self.prepare_threshold is not None and len(self.names) < NAMES_MAX

    def ask(self, sql: str, params: Sequence[Any], origin: str) -> Rows:
        """Execute a statement whose answer is whole numbers."""
        pgconn = self.pgconn
        if sql not in self.names:
            name = _new_name()
            pgconn.send_prepare(name, sql.encode())
            _checked(self, self.wait(execute(pgconn)))
            self.names[sql] = name
        pgconn.send_query_prepared(self.names[sql], _as_texts(params, origin))
        return _rows(_checked(self, self.wait(execute(pgconn))))


class AsyncConnection(psycopg.AsyncConnection[Any]):
    """For asyncio."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names: dict[str, bytes] = {}

    @property
    def takes_more(self) -> bool:
        return self.prepare_threshold is not None and len(self.names) < NAMES_MAX

    async def ask(self, sql: str, params: Sequence[Any], origin: str) -> Rows:
        pgconn = self.pgconn
        if sql not in self.names:
            name = _new_name()
            pgconn.send_prepare(name, sql.encode())
            _checked(self, await self.wait(execute(pgconn)))
            self.names[sql] = name
        pgconn.send_query_prepared(self.names[sql], _as_texts(params, origin))
        if pgconn.flush():  # it is long, and the server has to take some of it first
            return _rows(_checked(self, await self.wait(execute(pgconn))))
        return _rows(_checked(self, await _answer(pgconn)))


def end(connection: psycopg.Connection[Any], sql: str) -> Rows:
    """Execute an Ending."""
    with connection.lock:
        connection.pgconn.send_query(sql.encode())
        return _ended(connection.pgconn, connection.wait(execute(connection.pgconn)))


async def end_async(connection: psycopg.AsyncConnection[Any], sql: str) -> Rows:
    async with connection.lock:
        connection.pgconn.send_query(sql.encode())
        return _ended(connection.pgconn, await connection.wait(execute(connection.pgconn)))


def _ended(pgconn: PGconn, results: list[PGresult]) -> Rows:
    """The driver would report an error of any of them as the error of all."""
    if results[0].status != ExecStatus.COMMAND_OK:
        raise errors.error_from_result(results[0])
    if any(result.status not in _GOOD for result in results):
        pgconn.finish()
        return ()
    return [row for result in results for row in texts(result)]


def texts(result: PGresult) -> list[tuple[str | None, ...]]:
    """The rows of a result, in the server's text form."""
    value, columns = result.get_value, range(result.nfields)
    return [
        tuple(None if (v := value(row, c)) is None else v.decode() for c in columns)
        for row in range(result.ntuples)
    ]


def _new_name() -> bytes:
    return b"commandbus_%d" % next(_numbers)


def _as_texts(params: Sequence[Any], origin: str) -> list[bytes | None]:
    return [
        None if value is None else (origin if value is ORIGIN else str(value)).encode()
        for value in params
    ]


async def _answer(pgconn: PGconn) -> list[PGresult]:
    """Wait for an answer with nothing but a future: the driver sets a timer for each wait, too."""
    loop, socket = asyncio.get_running_loop(), pgconn.socket
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            arrived: asyncio.Future[None] = loop.create_future()
            loop.add_reader(socket, _set, arrived)
            try:
                await arrived
            finally:
                loop.remove_reader(socket)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return results
        results.append(result)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _checked(connection: Connection | AsyncConnection, results: list[PGresult]) -> PGresult:
    result = results[-1]
    if result.status in _GOOD:
        return result
    error = errors.error_from_result(result)
    if isinstance(error, errors.FeatureNotSupported | errors.InvalidSqlStatementName):
        # Its plan is of an older schema, or a handler has removed all that was prepared here.
        connection.names.clear()
    raise error


def _rows(result: PGresult) -> Rows:
    value, columns = result.get_value, range(result.nfields)
    return [
        [None if (found := value(row, column)) is None else int(found) for column in columns]
        for row in range(result.ntuples)
    ]
