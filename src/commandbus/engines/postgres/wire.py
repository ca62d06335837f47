"""Sends straight through libpq.

A driver's cursor takes longer than everything else that a lone send needs in its own process. What
senders share has parameters of a few plain kinds and is answered by whole numbers, so it goes out
prepared, as text, without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from commandbus.engines.postgres.drivers import Driver
from commandbus.engines.postgres.statements import ORIGIN
from commandbus.store.op import Rows

NAMES_MAX = 20
"""Statements that are prepared here on a connection; the driver forgets old ones, this does not."""

_numbers = count()
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class _Prepares:
    """`names` are the statements that were prepared here on a connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names: dict[str, bytes] = {}

    @property
    def takes_more(self: Any) -> bool:
        """Whether statements are prepared at all, and one more can be."""
        return bool(self.prepare_threshold is not None and len(self.names) < NAMES_MAX)


class Connection(_Prepares, psycopg.Connection[Any]):
    """For threads."""


class AsyncConnection(_Prepares, psycopg.AsyncConnection[Any]):
    """For asyncio."""


async def ask(
    driver: Driver,
    connection: Connection | AsyncConnection,
    sql: str,
    params: Sequence[Any],
    origin: str,
) -> Rows:
    """Execute a statement whose answer is whole numbers."""
    pgconn = connection.pgconn
    if sql not in connection.names:
        name = b"commandbus_%d" % next(_numbers)
        pgconn.send_prepare(name, sql.encode())
        _checked(connection, await driver.answer(connection))
        connection.names[sql] = name
    pgconn.send_query_prepared(connection.names[sql], _as_texts(params, origin))
    return _rows(_checked(connection, await driver.answer(connection)))


async def end(driver: Driver, connection: Any, sql: str) -> Rows:
    """Execute an Ending."""
    return _ended(connection.pgconn, await driver.query(connection, sql.encode()))


def _ended(pgconn: PGconn, results: list[PGresult]) -> Rows:
    """Check each result: the driver would raise an error of one of them for all."""
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


def _as_texts(params: Sequence[Any], origin: str) -> list[bytes | None]:
    return [
        None if value is None else (origin if value is ORIGIN else str(value)).encode()
        for value in params
    ]


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
