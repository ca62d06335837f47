"""Bells beside an SQLite file: a commit in one process wakes a worker in another at once, and where no
bell can ring the change counter finds the work. Two buses on one file are as two processes here."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from commandbus import HandlerRegistry
from commandbus.engines.sqlite import watcher
from commandbus.engines.sqlite.doorbell import (
    EVERY_COMMIT,
    LOOK,
    SLOTS,
    STAND_BY,
    Bell,
    Doorbell,
    mask_of,
)
from commandbus.store.op import Wake
from commandbus.store.records import ClaimRequest
from commandbus.sync import SyncCommandBus
from commandbus.testing import Configuration, Harness, Recorder, eventually

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")

ORDERS = [Wake("orders")]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "bus.db"
    SyncCommandBus(url_of(path)).open().close()
    return path


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rings are heard."""
    monkeypatch.setattr(watcher, "NET_INTERVAL", 3600.0)


@pytest.fixture(params=["asyncio", "threads"])
def harness(request: pytest.FixtureRequest, store: Path) -> Iterator[Harness]:
    with closing(Configuration("sqlite", url_of(store)).open(request.param)) as opened:
        yield opened


def url_of(path: Path) -> str:
    return f"sqlite:///{path}?synchronous=off"


def registry_of(handler: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("orders", "ship", handler)
    return registry


def asleep(store: Path) -> Doorbell:
    """A process that sleeps for the domain `orders`."""
    doorbell = Doorbell(store)
    doorbell.bell = doorbell.listen()  # type: ignore[attr-defined]
    doorbell.sleep([frozenset({"orders"})], False)
    return doorbell


def heard(doorbell: Doorbell) -> bytes:
    bell: Bell = doorbell.bell  # type: ignore[attr-defined]
    return bell.wait(0)


def word_of(store: Path, slot: int) -> int:
    return int.from_bytes(Path(f"{store}.lock").read_bytes()[8 * slot : 8 * slot + 8], "little")


@pytest.mark.usefixtures("no_net")
def test_a_send_of_another_process_rings(harness: Harness, store: Path) -> None:
    recorder = Recorder()
    with harness.run_worker(registry_of(recorder)) as running, SyncCommandBus(url_of(store)) as other:
        running.wait_until_idle()
        eventually(lambda: word_of(store, 0) == mask_of(["orders"]))
        other.send("orders", "ship")
        assert recorder.wait_for(1)
        assert running.wakeups(only=["bell"]) == 1


@pytest.mark.usefixtures("no_net")
def test_a_delayed_send_of_another_process_sets_the_timer(harness: Harness, store: Path) -> None:
    recorder = Recorder()
    with harness.run_worker(registry_of(recorder)) as running, SyncCommandBus(url_of(store)) as other:
        running.wait_until_idle()
        eventually(lambda: word_of(store, 0) == mask_of(["orders"]))
        other.send("orders", "ship", delay=0.05)
        assert recorder.wait_for(1)


@pytest.mark.usefixtures("no_net")
def test_a_commit_of_a_caller_is_found(harness: Harness, store: Path) -> None:
    recorder = Recorder()
    with harness.run_worker(registry_of(recorder)) as running, SyncCommandBus(url_of(store)) as other:
        running.wait_until_idle()
        eventually(lambda: word_of(store, 0) == mask_of(["orders"]))
        connection = sqlite3.connect(store)
        other.within(connection).send("orders", "ship")
        connection.commit()
        connection.close()
        assert recorder.wait_for(1)


@pytest.mark.usefixtures("no_net")
def test_an_outcome_of_another_process_rings(harness: Harness, store: Path) -> None:
    with SyncCommandBus(url_of(store)) as other, harness.run_worker(registry_of(Recorder())):
        sent = other.send("orders", "ship")
        assert other.wait(sent, timeout=20).status.name == "COMPLETED"


def test_without_a_bell_work_is_found(harness: Harness, store: Path) -> None:
    for slot in range(SLOTS):
        Path(f"{store}.bell-{slot}").touch()
    recorder = Recorder()
    with harness.run_worker(registry_of(recorder)) as running, SyncCommandBus(url_of(store)) as other:
        running.wait_until_idle()
        other.send("orders", "ship")
        assert recorder.wait_for(1)
        assert running.wakeups(only=["bell"]) == 0


@pytest.mark.parametrize("with_bell", [True, False])
def test_a_busy_worker_hears_of_a_cancellation_of_another_process(
    harness: Harness, store: Path, with_bell: bool
) -> None:
    if not with_bell:
        for slot in range(SLOTS):
            Path(f"{store}.bell-{slot}").touch()
    began, registry = threading.Event(), HandlerRegistry()

    @registry.handler("orders", "ship")
    async def ship(command: Any, context: Any) -> None:
        began.set()
        await asyncio.sleep(60)

    with (
        harness.run_worker(registry, concurrency=1, visibility_timeout=60) as running,
        SyncCommandBus(url_of(store)) as other,
    ):
        running.wait_until_idle()
        sent = other.send("orders", "ship")
        assert began.wait(20)
        other.cancel(sent)
        # Its lease is renewed after 20 s, which would tell it too.
        assert other.wait(sent, timeout=5).status.name == "CANCELED"


def test_work_that_rang_nowhere_is_found_and_looked_for_more_often(
    harness: Harness, store: Path
) -> None:
    recorder = Recorder()
    with harness.run_worker(registry_of(recorder)) as running, SyncCommandBus(url_of(store)) as other:
        running.wait_until_idle()
        eventually(lambda: word_of(store, 0) == mask_of(["orders"]))
        other.engine._doorbell.close()
        other.send("orders", "ship")
        assert recorder.wait_for(1)
        assert running.wakeups(only=["watch"]) == 1
        eventually(lambda: harness.bus.engine._watcher._unrung_until > 0)


def test_a_bell_that_was_removed_is_hung_again(harness: Harness, store: Path) -> None:
    with harness.run_worker(registry_of(Recorder())) as running:
        running.wait_until_idle()
        bell = Path(f"{store}.bell-0")
        eventually(bell.exists)
        bell.unlink()
        eventually(bell.exists)
        assert stat.S_ISFIFO(bell.stat().st_mode)


def test_one_process_looks_at_once_and_the_others_stand_by(store: Path) -> None:
    sleepers = [asleep(store) for _ in range(3)]
    sender = Doorbell(store)
    sender.ring(ORDERS, ORDERS)
    assert sorted(map(heard, sleepers)) == [LOOK, STAND_BY, STAND_BY]
    sender.ring(ORDERS, ORDERS)
    assert [heard(one) for one in sleepers] == [b"", b"", b""], (
        "they have not said that they sleep again"
    )


def test_local_work_lets_other_processes_stand_by(store: Path) -> None:
    sleeper, sender = asleep(store), asleep(store)
    sender.ring(ORDERS, [])
    assert heard(sleeper) == STAND_BY
    assert heard(sender) == b"", "a process does not ring itself"


def test_work_that_requires_tags_wakes_all_processes(store: Path) -> None:
    sleepers = [asleep(store) for _ in range(3)]
    tagged = [Wake("orders", None, everyone=True)]
    Doorbell(store).ring(tagged, tagged)
    assert list(map(heard, sleepers)) == [LOOK, LOOK, LOOK]


def test_other_domains_and_the_busy_hear_nothing(store: Path) -> None:
    sleeper, busy = asleep(store), asleep(store)
    busy.sleep([], False)
    Doorbell(store).ring([Wake("billing")], [Wake("billing")])
    assert heard(sleeper) == b""
    Doorbell(store).ring(ORDERS, ORDERS)
    assert heard(busy) == b""


def test_a_process_that_awaits_an_outcome_hears_every_commit(store: Path) -> None:
    sleeper = asleep(store)
    sleeper.sleep([], True)
    assert word_of(store, 0) == EVERY_COMMIT
    Doorbell(store).ring([], [])
    assert heard(sleeper) == LOOK


def test_the_bell_of_a_dead_process_is_given_to_the_next(store: Path) -> None:
    dead = asleep(store)
    dead.bell.leave()  # type: ignore[attr-defined]
    sender = Doorbell(store)
    sender.ring(ORDERS, ORDERS)
    assert word_of(store, 0) == 0, "nothing rings there again"
    following = asleep(store)
    assert word_of(store, 0) == mask_of(["orders"])
    sender.ring(ORDERS, ORDERS)
    assert heard(following) == LOOK


def test_a_child_of_a_fork_keeps_no_bell(store: Path) -> None:
    parent = asleep(store)
    child = os.fork()
    if child == 0:
        os._exit(0 if parent.bell._reads == -1 else 1)  # type: ignore[attr-defined]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    Doorbell(store).ring(ORDERS, ORDERS)
    assert heard(parent) == LOOK


def test_a_full_bell_does_not_hold_up_a_commit(store: Path) -> None:
    sleeper = asleep(store)
    bell = os.open(f"{store}.bell-0", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(bell, bytes(4096))
    os.close(bell)
    Doorbell(store).ring(ORDERS, ORDERS)
    assert heard(sleeper)


@pytest.mark.parametrize("kind", ["link", "file", "folder"])
def test_nothing_but_a_pipe_is_written_to(store: Path, kind: str) -> None:
    victim = store.parent / "victim"
    victim.write_bytes(b"as it was")
    bell = Path(f"{store}.bell-0")
    match kind:
        case "link":
            bell.symlink_to(victim)
        case "file":
            bell.hardlink_to(victim)
        case "folder":
            bell.mkdir()
    sender = Doorbell(store)
    assert sender._words is not None
    sender._words[0] = mask_of(["orders"])
    sender.ring(ORDERS, ORDERS)
    assert victim.read_bytes() == b"as it was"
    assert asleep(store)._slot == 1, "the first one is taken, whatever it is"


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_bell_has_the_rights_of_the_store(store: Path, mode: int) -> None:
    store.chmod(mode)
    asleep(store)
    assert stat.S_IMODE(Path(f"{store}.bell-0").stat().st_mode) == mode


def test_a_long_path_has_a_bell(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 20)
    folder.mkdir(parents=True)
    path = folder / "bus.db"
    with SyncCommandBus(url_of(path)):
        sleeper = asleep(path)
        Doorbell(path).ring(ORDERS, ORDERS)
        assert heard(sleeper) == LOOK


def test_a_closed_bus_leaves_no_bell_behind(harness: Harness, store: Path) -> None:
    with harness.run_worker(registry_of(Recorder())):
        eventually(Path(f"{store}.bell-0").exists)
    harness.bus.engine.close()
    assert not list(store.parent.glob("*.bell-*"))
    assert word_of(store, 0) == 0


def test_claims_do_not_wait_for_the_disk_and_sends_do(tmp_path: Path) -> None:
    configuration = Configuration("sqlite", f"sqlite:///{tmp_path / 'bus.db'}")
    with closing(configuration.open("threads")) as harness:
        lane = harness.bus.engine.lane(read=False)
        for _ in range(2):
            harness.send()
            assert lane.connection.execute("pragma synchronous").fetchone() == (2,)
            harness.run(harness.store.claim(ClaimRequest(("orders",), 1, "worker", 30.0)))
            assert lane.connection.execute("pragma synchronous").fetchone() == (1,)
