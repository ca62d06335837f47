"""Bulk sends larger than a chunk: copied piece by piece, committed as one."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from commandbus import SendRequest
from commandbus.domain.ids import new_id
from commandbus.engines.postgres import sending
from commandbus.errors import DuplicateCommandError
from commandbus.operations import sending as operation
from commandbus.sync import SyncCommandBus
from tests.postgres.database import postgres_configuration
from tests.support.extent import EVERYTHING

pytestmark = pytest.mark.postgres


@pytest.fixture
def bus() -> Iterator[SyncCommandBus]:
    with SyncCommandBus(postgres_configuration().url) as bus:
        yield bus


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "CHUNK", 300)
    monkeypatch.setattr(operation, "BLOCK", 300)


@pytest.mark.usefixtures("_small_chunks")
def test_commands_of_all_chunks_arrive_in_order(bus: SyncCommandBus) -> None:
    sent = bus.send_many(SendRequest("orders", "ship", n) for n in range(1_000))
    with psycopg.connect(bus.url) as connection:
        rows = connection.execute("select command_id, data from commandbus.command order by seq")
        assert rows.fetchall() == [(one.command_id, str(n)) for n, one in enumerate(sent)]
    assert bus.stats("orders").ready == 1_000


@pytest.mark.usefixtures("_small_chunks")
def test_results_of_several_blocks_are_made_when_they_are_looked_at(bus: SyncCommandBus) -> None:
    sent = bus.send_many(SendRequest("orders", "ship", n) for n in range(700))
    assert (len(sent), sent[600]) == (700, list(sent)[600])
    assert sent[600] is not sent[600]


@pytest.mark.usefixtures("_small_chunks")
def test_a_bulk_send_of_several_chunks_notifies_each_domain_once(bus: SyncCommandBus) -> None:
    with psycopg.connect(bus.url, autocommit=True) as other:
        other.execute('listen """commandbus"".wake"')
        other.execute(
            "insert into commandbus.sleeper (domain, process, until)"
            " select d, 'elsewhere', commandbus.now_us() + 60000000 from unnest(%s::text[]) d",
            (["orders", "parcels"],),
        )
        bus.send_many(SendRequest("orders" if n % 2 else "parcels", "ship", n) for n in range(1_000))
        other.execute("select 1")  # notifications of earlier commits come with the answer
        heard = [notify.payload.split()[0] for notify in other.notifies(timeout=0)]
    assert sorted(heard) == ["orders", "parcels"]


@pytest.mark.usefixtures("_small_chunks")
def test_a_command_refused_in_the_last_chunk_undoes_the_first(bus: SyncCommandBus) -> None:
    known = bus.send("orders", "ship").command_id
    ids = [new_id() for _ in range(999)]
    with pytest.raises(DuplicateCommandError, match=str(known)):
        bus.send_many(SendRequest("orders", "ship", command_id=one) for one in [*ids, known])
    assert bus.stats("orders").ready == 1


@pytest.mark.usefixtures("_small_chunks")
def test_an_iterator_that_fails_in_the_last_block_undoes_the_first(bus: SyncCommandBus) -> None:
    seen: list[int] = []

    def requests() -> Iterator[SendRequest]:
        for n in range(700):
            yield SendRequest("orders", "ship", n)
        with psycopg.connect(bus.url) as connection:
            # What was written is not visible to others; what this send holds keeps no one waiting.
            seen.append(len(connection.execute("select 1 from commandbus.command").fetchall()))
        assert bus.send("other", "ship").duplicate is False
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        bus.send_many(requests())
    assert (seen, bus.stats("orders").ready, bus.stats("other").ready) == ([0], 0, 1)


@pytest.mark.usefixtures("_small_chunks")
def test_a_batch_of_several_chunks_is_whole(bus: SyncCommandBus) -> None:
    made = bus.create_batch(SendRequest("orders", "ship", n) for n in range(1_000))
    assert made.total == bus.stats("orders").ready == 1_000


@pytest.mark.skipif(not EVERYTHING, reason="takes a minute; COMMANDBUS_TEST=everything")
def test_a_batch_of_a_million_is_whole(bus: SyncCommandBus) -> None:
    made = bus.create_batch(SendRequest("orders", "ship", n) for n in range(1_000_000))
    with psycopg.connect(bus.url) as connection:
        row = connection.execute("select count(*) from commandbus.queue").fetchone()
    assert row == (made.total,) == (1_000_000,)
