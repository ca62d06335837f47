"""A damaged row is somebody's accident or attack: it is reported, and nobody else suffers."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st

from commandbus import CommandStatus, HandlerRegistry
from commandbus.errors import CommandBusError
from commandbus.store.records import ClaimReply, ClaimRequest
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from commandbus.testing.waiting import eventually
from tests.fuzz.fuzzing import fuzzed, texts

DOMAIN = "rows"
COLUMNS = (
    "command_id",
    "command_type",
    "data",
    "correlation_id",
    "causation_id",
    "reply_to",
    "max_attempts",
    "headers",
    "tags",
    "expires_at",
)
ENDED = {
    CommandStatus.COMPLETED,
    CommandStatus.IN_TROUBLESHOOTING_QUEUE,
    CommandStatus.CANCELED,
    CommandStatus.FAILED,
}
damages = st.one_of(
    texts.filter(lambda text: "\ud800" not in text),
    st.binary(max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.just('{"cut off'),
    st.just("[]"),
)


def damage(file: Path, command_id: UUID, column: str, value: Any) -> bool:
    """Whether the file takes it: some damage is refused by its rules."""
    with closing(sqlite3.connect(file, timeout=10)) as connection, connection:
        try:
            connection.execute(
                f"update commandbus_command set {column} = ? where command_id = ?",
                (value, command_id.bytes),
            )
        except sqlite3.IntegrityError:
            return False
    return True


class Floor:
    """A worker on a file whose rows are damaged under its hands."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "rows.db"
        registry = HandlerRegistry()
        registry.register(DOMAIN, "note", lambda command, context: None)
        self.bus = SyncCommandBus(f"sqlite:///{self.file}?synchronous=off").open()
        self.worker = SyncWorker(self.bus, DOMAIN, registry, poll_interval=0.1, visibility_timeout=1.0)
        self.running = threading.Thread(target=self.worker.run, daemon=True)
        self.running.start()

    def damage(self, command_id: UUID, column: str, value: Any) -> bool:
        return damage(self.file, command_id, column, value)

    def close(self) -> None:
        self.worker.stop(1)
        self.running.join(10)
        self.bus.close()


@pytest.fixture
def floor(tmp_path: Path) -> Iterator[Floor]:
    floor = Floor(tmp_path)
    yield floor
    floor.close()


@fuzzed(column=st.sampled_from(COLUMNS), value=damages)
def test_a_damaged_row_harms_no_other(floor: Floor, column: str, value: Any) -> None:
    bus = floor.bus
    bus.pause(DOMAIN)
    before, damaged, after = (bus.send(DOMAIN, "note").command_id for _ in range(3))
    floor.damage(damaged, column, value)
    bus.resume(DOMAIN)
    for innocent in (before, after):
        record = eventually(lambda one=innocent: _ended(bus, one), 10)
        assert record.status is CommandStatus.COMPLETED
    assert floor.running.is_alive(), "the worker died"
    # The damaged one does not come back for ever, and is in nobody's way who looks.
    eventually(lambda: _idle(bus), 15)
    newest = bus.query_commands(domain=DOMAIN, limit=3)
    assert {record.command_id for record in newest} >= {before, after}
    # A type that nobody knows is given back again and again, for a worker that may come yet.
    known = ENDED | {CommandStatus.PENDING} if column == "command_type" else ENDED
    assert {record.status for record in newest} <= known


DAMAGED = {
    "command_id": "{torn",
    "correlation_id": "{torn",
    "data": "{torn",
    "max_attempts": "{torn",
    "headers": b"{torn",
    "tags": 7,
    "reply_to": b"torn",
}


@pytest.mark.parametrize("column", DAMAGED)
def test_a_damaged_command_is_parked_and_its_domain_goes_on(floor: Floor, column: str) -> None:
    bus = floor.bus
    bus.pause(DOMAIN)
    damaged, healthy = (bus.send(DOMAIN, "note").command_id for _ in range(2))
    assert floor.damage(damaged, column, DAMAGED[column])
    bus.resume(DOMAIN)
    assert eventually(lambda: _ended(bus, healthy), 10).status is CommandStatus.COMPLETED
    (parked,) = eventually(lambda: SyncTroubleshootingQueue(bus).list_troubleshooting(), 10)
    assert parked.error is not None
    assert parked.error.code in ("DAMAGED", "UNDECODABLE")


@pytest.mark.parametrize("column", ["data", "headers", "tags"])
def test_a_damaged_command_is_parked_and_others_are_received(tmp_path: Path, column: str) -> None:
    file = tmp_path / "rows.db"
    with SyncCommandBus(f"sqlite:///{file}") as bus:
        first, damaged, last = (bus.send(DOMAIN, "note").command_id for _ in range(3))
        assert damage(file, damaged, column, "{torn")
        received = SyncWorker(bus, DOMAIN, HandlerRegistry()).receive(10)
        assert [one.command.command_id for one in received] == [first, last]
        (parked,) = SyncTroubleshootingQueue(bus).list_troubleshooting()
        assert parked.error is not None
        assert (parked.command_id, parked.error.code) == (damaged, "UNDECODABLE")


def test_a_damaged_place_in_a_queue_keeps_no_other_domain_waiting(tmp_path: Path) -> None:
    file = tmp_path / "rows.db"

    def claim() -> ClaimReply:
        return bus.session.run(bus.engine.store.claim(ClaimRequest(("bad", "good"), 10, "w", 30.0)))

    def mend(attempts: Any) -> None:
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(
                "update commandbus_queue set attempts = ? where domain = 'bad'", [attempts]
            )

    with SyncCommandBus(f"sqlite:///{file}") as bus:
        bad = bus.send("bad", "note")
        mend("torn")
        with pytest.raises(TypeError):
            claim()
        for _ in range(3):  # each begins with another domain
            good = bus.send("good", "note")
            reply = claim()
            assert [one.command_id for one in reply.claimed] == [good.command_id]
            assert "claims from bad fail: TypeError" in str(reply.stuck)
        assert claim().next_due_in == 1.0
        mend(0)
        reply = claim()
        assert ([one.command_id for one in reply.claimed], reply.stuck) == ([bad.command_id], ())


def _idle(bus: SyncCommandBus) -> bool:
    stats = bus.stats(DOMAIN)
    return not stats.running and not stats.ready


def _ended(bus: SyncCommandBus, command_id: UUID) -> Any:
    try:
        record = bus.get_command(command_id, domain=DOMAIN)
    except CommandBusError:
        return None
    return record if record is not None and record.status in ENDED else None
