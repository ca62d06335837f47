"""The proxy does what it says: trouble that does not happen would prove nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from commandbus.testing.postgres import create_database
from commandbus.testing.waiting import eventually
from tests.postgres.database import server
from tests.support.proxy import Proxy
from tests.support.wire import Conversation, Message, Splitter

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def dsn() -> str:
    own = server(os.getpid())
    name = create_database(own).partition("?")[0].rpartition("/")[2]
    dsn = own.dsn(name, tcp=True)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table mark (n int)")
    return dsn


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("truncate mark")
    with Proxy(dsn) as proxy:
        yield proxy


def marks(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        return len(connection.execute("select n from mark").fetchall())


def test_it_passes_everything_on(proxy: Proxy) -> None:
    with psycopg.connect(proxy.url) as connection:
        found = connection.execute("select repeat('x', 300000)").fetchone()
        assert found is not None
        assert len(found[0]) == 300_000
        assert proxy.links == 1
    eventually(lambda: proxy.links == 0)
    with psycopg.connect(f"{proxy.url}&sslmode=prefer") as connection:
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_connection_fails_and_the_next_works(proxy: Proxy, reset: bool) -> None:
    with psycopg.connect(proxy.url, autocommit=True) as connection:
        assert proxy.cut(reset=reset) == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with psycopg.connect(proxy.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_what_is_frozen_waits_and_goes_on(proxy: Proxy) -> None:
    answers: list[object] = []
    with psycopg.connect(proxy.url, autocommit=True) as connection:

        def ask() -> None:
            answers.append(connection.execute("select 7").fetchone())

        with proxy.frozen():
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(0.2)
            assert answers == []
        asking.join(5)
        assert answers == [(7,)]


def test_a_half_open_connection_hears_nothing_while_the_server_has_let_go(
    proxy: Proxy, dsn: str
) -> None:
    connection = psycopg.connect(f"{proxy.url}&application_name=half")
    assert proxy.half_open() == 1

    def gone() -> bool:
        with psycopg.connect(dsn) as other:
            count = other.execute("select 1 from pg_stat_activity where application_name = 'half'")
            return count.fetchone() is None

    eventually(gone)
    connection.pgconn.send_query(b"select 1")
    connection.pgconn.flush()
    time.sleep(0.1)
    connection.pgconn.consume_input()
    assert connection.pgconn.is_busy(), "nothing came back, not even an end"
    connection.close()


def test_delay_and_trickle_slow_down(proxy: Proxy) -> None:
    with psycopg.connect(proxy.url, autocommit=True) as connection:
        for weather in ({"delay": 0.05}, {"bytes_per_second": 20_000}):
            proxy.weather(**weather)
            began = time.monotonic()
            connection.execute("select repeat('x', 5000)")
            assert time.monotonic() - began >= 0.05
            proxy.weather()


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize(("harm", "durable"), [("before", 0), ("after", 1)])
def test_a_cut_on_commit_is_exact(
    proxy: Proxy, dsn: str, harm: str, durable: int, explicit: bool
) -> None:
    with psycopg.connect(proxy.url, autocommit=not explicit, prepare_threshold=0) as connection:
        connection.execute("select 1")
        trap = proxy.on_commit(harm)  # type: ignore[arg-type]

        def change() -> None:
            connection.execute("insert into mark values (%s)", [1])
            connection.commit()

        with pytest.raises(psycopg.OperationalError):
            change()
        assert trap.sprung.wait(5)
    assert marks(dsn) == durable
    with psycopg.connect(proxy.url) as connection:
        connection.execute("insert into mark values (2)")
    assert marks(dsn) == durable + 1


def test_a_copy_can_be_cut_after_it_was_stored(proxy: Proxy, dsn: str) -> None:
    with psycopg.connect(proxy.url, autocommit=True) as connection:
        trap = proxy.on_statement("^copy", "after")
        with (
            pytest.raises(psycopg.OperationalError),
            connection.cursor().copy("copy mark from stdin") as copy,
        ):
            copy.write(b"1\n2\n")
        assert trap.sprung.wait(5)
    assert marks(dsn) == 2


def test_it_can_refuse_and_lead_elsewhere(proxy: Proxy, dsn: str) -> None:
    proxy.refusing = True
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.url)
    proxy.refusing = False
    proxy.lead_to(dsn.replace("127.0.0.1", "localhost"))
    with psycopg.connect(proxy.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_messages_are_found_wherever_the_stream_is_split() -> None:
    start = b"\x00\x00\x00\x08\x04\xd2\x16\x2f" + b"\x00\x00\x00\x0a\x00\x03\x00\x00x\x00"
    stream = start + b"Q\x00\x00\x00\x0bcommit\x00" + b"S\x00\x00\x00\x04"
    for size in range(1, len(stream)):
        splitter = Splitter(started=False)
        pieces = [stream[n : n + size] for n in range(0, len(stream), size)]
        kinds = [message.kind for piece in pieces for message in splitter.feed(piece)]
        assert kinds == ["", "", "Q", "S"]
    talk = Conversation()
    assert talk.said(Message("Q", b"Q\x00\x00\x00\x0bcommit\x00")) == "commit"
    assert talk.commits("commit")
    assert talk.commits("insert into x")
    talk.in_transaction = True
    assert not talk.commits("insert into x")
