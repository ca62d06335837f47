"""Sends inside callers' transactions: psycopg, asyncpg, SQLAlchemy and Django, blocking and asyncio."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from commandbus import CommandBus, SendRequest
from commandbus.errors import ConfigurationError, DuplicateCommandError, InvalidOperationError
from commandbus.operations.queues import pause
from commandbus.sync import SyncCommandBus
from tests.postgres.database import empty_url
from tests.support.django_site import set_up_django

pytestmark = pytest.mark.postgres

MANY = [SendRequest("orders", "ship", {"n": n}) for n in range(150)]


@pytest.fixture
def url() -> str:
    return empty_url()


def depth(url: str) -> int:
    with SyncCommandBus(url) as bus:
        return bus.stats("orders").depth


def sqlalchemy_url(url: str, driver: str) -> Any:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    parts = urlsplit(url)
    return sqlalchemy.URL.create(
        f"postgresql+{driver}", username=parts.username, database=parts.path[1:]
    )


def socket_of(url: str) -> dict[str, str]:
    query = parse_qs(urlsplit(url).query)
    return {"host": query["host"][0], "port": query["port"][0]}


def test_a_connection_in_autocommit_has_nothing_to_be_part_of(url: str) -> None:
    with SyncCommandBus(url) as bus, psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(InvalidOperationError, match="begin one first"):
            bus.within(connection).send("orders", "ship")
        with connection.transaction():
            bus.within(connection).send("orders", "ship")
    assert depth(url) == 1


def test_an_invalid_connection_is_refused(url: str) -> None:
    with SyncCommandBus(url) as bus, pytest.raises(ConfigurationError, match="psycopg"):
        bus.within(object())


def test_a_refused_send_leaves_the_transaction_usable(url: str) -> None:
    with SyncCommandBus(url) as bus, psycopg.connect(url) as connection:
        known = bus.send("orders", "ship")
        within = bus.within(connection)
        for requests in ([SendRequest("orders", "ship", command_id=known.command_id)], MANY):
            again = [*requests, SendRequest("orders", "ship", command_id=known.command_id)]
            with pytest.raises(DuplicateCommandError):
                within.send_many(again)
        within.send("orders", "ship")
        connection.commit()
    assert depth(url) == 2


def test_rows_of_the_callers_own_kind_do_not_matter(url: str) -> None:
    dicts = psycopg.rows.dict_row
    with SyncCommandBus(url) as bus, psycopg.connect(url, row_factory=dicts) as connection:
        bus.within(connection).send("orders", "ship", unique_key="k")
        assert bus.within(connection).send("orders", "ship", unique_key="k").duplicate
    assert depth(url) == 1


@pytest.mark.parametrize("commit", [True, False])
async def test_asyncpg(url: str, commit: bool) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    connection = await asyncpg.connect(url)
    async with CommandBus(url) as bus:
        with pytest.raises(InvalidOperationError, match="begin one first"):
            await bus.within(connection).send("orders", "ship")
        transaction = connection.transaction()
        await transaction.start()
        within = bus.within(connection)
        sent = await within.send("orders", "ship", {"a": 1}, delay=5, tags=["x"], max_attempts=3)
        assert (await within.get_command(sent.command_id)).tags == ("x",)
        with pytest.raises(DuplicateCommandError):
            await within.send("orders", "ship", command_id=sent.command_id)
        await within.send_many(MANY)
        await within.cancel(sent.command_id)
        await (transaction.commit() if commit else transaction.rollback())
    await connection.close()
    assert depth(url) == (len(MANY) if commit else 0)


@pytest.mark.parametrize("commit", [True, False])
def test_sqlalchemy(url: str, commit: bool) -> None:
    address = sqlalchemy_url(url, "psycopg")
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine(address, connect_args=socket_of(url))
    with SyncCommandBus(url) as bus:
        for open_one in (engine.connect, lambda: Session(engine)):
            with open_one() as connection:
                bus.within(connection).send("orders", "ship")
                bus.within(connection).send_many(MANY)
                connection.commit() if commit else connection.rollback()
    engine.dispose()
    assert depth(url) == (2 * (1 + len(MANY)) if commit else 0)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("commit", [True, False])
async def test_sqlalchemy_asyncio(url: str, driver: str, commit: bool) -> None:
    pytest.importorskip(driver)
    address = sqlalchemy_url(url, driver)
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(address, connect_args=socket_of(url))
    async with CommandBus(url) as bus:
        for open_one in (engine.connect, lambda: AsyncSession(engine)):
            async with open_one() as connection:
                await bus.within(connection).send("orders", "ship")
                await bus.within(connection).send_many(MANY)
                await (connection.commit() if commit else connection.rollback())
    await engine.dispose()
    assert depth(url) == (2 * (1 + len(MANY)) if commit else 0)


async def test_a_send_follows_the_commit_of_an_asyncio_session(url: str) -> None:
    address = sqlalchemy_url(url, "psycopg")
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    from commandbus.integrations.sqlalchemy import send_after_commit

    engine = create_async_engine(address, connect_args=socket_of(url))
    async with CommandBus("memory://") as bus, AsyncSession(engine) as session:
        for end in (session.rollback, session.commit):
            await session.execute(text("select 1"))
            send_after_commit(session, bus, "orders", "ship")
            assert (await bus.stats("orders")).depth == 0
            await end()
        assert (await bus.stats("orders")).depth == 1
    async with CommandBus(url) as bus, AsyncSession(engine) as session:
        send_after_commit(session, bus, "orders", "ship")
        await session.commit()
    await engine.dispose()
    assert depth(url) == 1


def test_django(url: str) -> None:
    set_up_django()
    from django.db.backends.postgresql.base import DatabaseWrapper

    query = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
    options = {
        "ENGINE": "django.db.backends.postgresql", "NAME": urlsplit(url).path[1:], "USER": "postgres",
        "PASSWORD": "", "HOST": query["host"], "PORT": query["port"], "TIME_ZONE": None,
        "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False, "AUTOCOMMIT": True, "ATOMIC_REQUESTS": False,
        "OPTIONS": {},
    }  # fmt: skip
    wrapper = DatabaseWrapper(options, "default")
    with SyncCommandBus(url) as bus:
        with pytest.raises(InvalidOperationError):
            bus.within(wrapper).send("orders", "ship")
        wrapper.set_autocommit(False)
        bus.within(wrapper).send("orders", "ship")
        wrapper.rollback()
        bus.within(wrapper).send("orders", "ship")
        wrapper.commit()
    wrapper.close()
    assert depth(url) == 1


def test_any_language_can_send_by_sql(url: str) -> None:
    with SyncCommandBus(url) as bus, psycopg.connect(url, autocommit=True) as connection:
        one = "select commandbus.send('orders', 'ship', '{\"b\": 1, \"a\": [2.50]}')"
        found = connection.execute(one).fetchone()
        assert found is not None
        record = bus.get_command(found[0])
        assert record is not None
        assert record.data == {"b": 1, "a": [2.5]}
        assert found[0].version == 7
        keyed = "select commandbus.send('orders', 'ship', unique_key => 'k', delay => '1 hour')"
        assert connection.execute(keyed).fetchone() == connection.execute(keyed).fetchone()
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="not valid"):
            connection.execute("select commandbus.send('no good', 'ship')")
        with pytest.raises(psycopg.Error):
            connection.execute("select commandbus.send('orders', 'ship', '\"\\u0000\"')")
    assert depth(url) == 2


def test_operators_do_not_wait_for_a_callers_transaction_in_which_one_acts(url: str) -> None:
    with SyncCommandBus(url) as bus:
        first, second, third = (bus.send("orders", "ship").command_id for _ in range(3))
        bus.acting("ann").cancel(first)
        with psycopg.connect(url) as one, psycopg.connect(url) as other:
            # An error instead of a wait without end.
            for connection in (one, other):
                connection.execute("set lock_timeout = '5s'")
            bus.within(one).acting("ann").cancel(second)
            bus.within(other).acting("ben").cancel(third)
            with psycopg.connect(url) as operator:
                operator.execute("set lock_timeout = '5s'")
                caller = bus.engine.within(operator)
                caller.run(pause(bus.acting("cal").scope, "orders"))
        report = bus.verify_audit()
        assert (report.links, report.open, report.problems) == (2, 2, [])
