"""What a worker does about others whose connection was closed."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import pytest

from commandbus.services.reclaimer import ANNOUNCE_SECONDS, GRACE_SECONDS, RECORDER_SECONDS, Reclaimer
from commandbus.store.deaths import WorkerDeath
from commandbus.store.op import Op
from commandbus.store.records import Claimed, ClaimRequest
from commandbus.store.sessions import ForeignLeases
from commandbus.sync import SyncCommandBus, SyncProcessReplyRouter
from commandbus.testing.sagas import BookTrip
from commandbus.testing.waiting import eventually
from commandbus.worker.recorder import folder_for, make_private
from commandbus.worker.recordings import Recordings
from tests.unit.test_recorder import leave

DOOMED = "doomed"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncCommandBus]:
    """The server knows that the connection of a worker was closed."""

    def lost(store: Any, worker: str) -> Op[ForeignLeases]:
        yield from ()
        return ForeignLeases(30.0, (DOOMED,))

    with SyncCommandBus("memory://") as bus:
        monkeypatch.setattr(type(bus.engine.store), "foreign_leases", lost)
        yield bus


class Known(Recordings):
    """The recorder of the worker lies here, and says this of its death."""

    def __init__(self, death: WorkerDeath | None = None, lives: Container[str] = ()) -> None:
        self._death, self._lives = death, lives

    def is_beside(self, worker: str) -> bool:
        return True

    def is_living(self, worker: str) -> bool:
        return worker in self._lives

    def death_of(self, worker: str) -> WorkerDeath | None:
        return self._death


def claim(bus: SyncCommandBus, worker: str) -> list[Claimed]:
    request = ClaimRequest(("orders",), 10, worker, 30.0)
    return list(bus.session.run(bus.engine.store.claim(request)).claimed)


def crashes_after(bus: SyncCommandBus, clock: Clock, reclaimer: Reclaimer, seconds: float) -> list[int]:
    """Of all commands, when the end of the session has been known for so long."""
    for moment in (clock.now, clock.now + seconds):
        clock.now = moment
        bus.session.run(reclaimer.work(bus.scope))
        reclaimer.confirm()
    return [one.crashes for one in claim(bus, "next")]


def test_without_a_recorder_everything_counts_a_crash(bus: SyncCommandBus) -> None:
    bus.send("orders", "ship")
    claim(bus, DOOMED)
    clock, counts = Clock(), list[int]()
    reclaimer = Reclaimer("me", ["orders"], 30.0, rescued=counts.append, monotonic=clock)
    assert crashes_after(bus, clock, reclaimer, GRACE_SECONDS) == [1]
    assert counts == [1]


def test_a_worker_that_is_seen_to_live_keeps_what_it_holds(bus: SyncCommandBus) -> None:
    """Its listening connection was given up, because the server has too few."""
    bus.send("orders", "ship")
    claim(bus, DOOMED)
    clock, living = Clock(), {DOOMED}
    reclaimer = Reclaimer(
        "me",
        ["orders"],
        30.0,
        recordings=Known(lives=living),
        monotonic=clock,
    )
    assert crashes_after(bus, clock, reclaimer, 2 * RECORDER_SECONDS) == []
    living.clear()
    assert crashes_after(bus, clock, reclaimer, RECORDER_SECONDS) == [1]


def test_a_recorder_that_lies_here_says_what_had_begun(bus: SyncCommandBus) -> None:
    """Its own reader had the time to act, and did not."""
    bus.send("orders", "ship")
    bus.send("orders", "ship")
    begun, _ = claim(bus, DOOMED)
    death = WorkerDeath(DOOMED, "Its worker died", frozenset({(begun.lease_id, begun.seq)}))
    clock = Clock()
    reclaimer = Reclaimer(
        "me",
        ["orders"],
        30.0,
        recordings=Known(death),
        monotonic=clock,
    )
    assert crashes_after(bus, clock, reclaimer, GRACE_SECONDS) == []
    assert crashes_after(bus, clock, reclaimer, RECORDER_SECONDS) == [1, 0]


def test_a_worker_that_takes_commands_after_a_pause_announces_it_at_once(
    bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[str] = []

    def announce(store: Any, topic: str) -> Op[None]:
        yield from ()
        announced.append(topic)

    monkeypatch.setattr(type(bus.engine.store), "announce", announce)
    monkeypatch.setattr(type(bus.engine.store), "session", "mine")
    clock = Clock()
    reclaimer = Reclaimer("me", ["orders"], 30.0, monotonic=clock)
    for now, news in ((100.0, True), (101.0, False), (100.0 + ANNOUNCE_SECONDS, True)):
        clock.now = now
        before = len(announced)
        assert reclaimer.took(now) is news
        bus.session.run(reclaimer.work(bus.scope))
        assert len(announced) - before == news


def test_a_router_counts_no_crash_for_what_a_dead_worker_had_not_begun(tmp_path: Path) -> None:
    """Routers take back expired leases, too."""
    base = tmp_path / "recorders"
    with SyncCommandBus(f"sqlite:///{tmp_path / 'jobs.db'}") as bus:
        folder = folder_for(str(base), bus.engine.identity)
        make_private(folder)
        leave(folder)
        sent = bus.send("orders", "ship")
        request = ClaimRequest(("orders",), 1, "w-dead", 0.1)
        assert bus.session.run(bus.engine.store.claim(request)).claimed
        router = SyncProcessReplyRouter(bus, BookTrip, poll_interval=0.1)
        router.recorder = str(base)
        running = threading.Thread(target=router.run, daemon=True)
        running.start()
        eventually(lambda: bus.get_command(sent).status == "PENDING")
        router.stop()
        running.join(10)
        kinds = [event.event_type for event in bus.get_audit_trail(sent)]
    assert kinds == ["SENT", "RECEIVED", "RELEASED"]
