"""Promotion: every live command of a file ends up on the server, once, whatever happens on the way."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from commandbus import (
    CommandStatus,
    PermanentCommandError,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
)
from commandbus.engines.postgres.session import PostgresSession
from commandbus.engines.sqlite.engine import SqliteSession
from commandbus.errors import ConfigurationError, InvalidOperationError
from commandbus.interfaces.cli.promotion import move
from commandbus.operations import promotion
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from commandbus.testing import Configuration
from commandbus.testing.conformance.atomicity import fails_at_every_step
from tests.cli.helpers import Cli
from tests.postgres.database import empty_url, postgres_configuration

pytestmark = pytest.mark.postgres
ORIGIN, WHERE = "sqlite:///jobs.db", "postgresql://server/db"


@pytest.fixture
def old(tmp_path: Path) -> Iterator[SyncCommandBus]:
    with SyncCommandBus(f"sqlite:///{tmp_path}/jobs.db?synchronous=off") as bus:
        yield bus


@pytest.fixture
def new() -> Iterator[SyncCommandBus]:
    with SyncCommandBus(empty_url(), migrate=True) as bus:
        yield bus


def fill(bus: SyncCommandBus) -> dict[str, UUID]:
    """One command of every kind that can move."""
    found: dict[str, UUID] = {}
    worker = SyncWorker(bus, "shop", retry_policy=RetryPolicy(backoff_schedule=[3600]))
    for name, error in (
        ("tried", TransientCommandError("AGAIN", "later")),
        ("parked", PermanentCommandError("BROKEN", "no such article")),
    ):
        found[name] = bus.send("shop", name, {"n": 2}, priority=0, max_attempts=5).command_id
        (taken,) = worker.receive(1)
        worker.fail(taken, error)
    found["ready"] = bus.send("shop", "buy", {"n": 1}, priority="high", tags=["x"]).command_id
    found["later"] = bus.send("shop", "buy", delay=3600, expires_at=None).command_id
    found["grouped"] = bus.send("shop", "buy", group_key="g", headers={"h": 1}).command_id
    found["keyed"] = bus.send("shop", "buy", unique_key="k", reply_to="answers").command_id
    found["tagged"] = bus.send("shop", "buy", requires=["gpu"]).command_id
    return found


def facts(bus: SyncCommandBus, command_id: UUID) -> Any:
    record = bus.get_command(command_id)
    assert record is not None
    told = {name: getattr(record, name) for name in record.__struct_fields__ if name != "sequence"}
    trail = [(e.event_type, e.timestamp, e.details) for e in bus.get_audit_trail(command_id)]
    return told, trail


def test_everything_moves_as_it_is(old: SyncCommandBus, new: SyncCommandBus) -> None:
    ids = fill(old)
    before = {name: facts(old, one) for name, one in ids.items()}
    pieces: list[int] = []
    assert move(old, new, ORIGIN, WHERE, pieces.append) == (len(ids), len(ids))
    assert sum(pieces) == len(ids)
    assert {name: facts(new, one) for name, one in ids.items()} == before
    for one in ids.values():
        left = old.get_command(one)
        assert left is not None
        assert (left.status, left.reason) == (CommandStatus.CANCELED, f"moved to {WHERE}")
        assert old.get_audit_trail(one)[-1].event_type == "MOVED"
    stats = old.stats("shop")
    assert (stats.ready, stats.scheduled, stats.parked) == (0, 0, 0)
    stats = new.stats("shop")
    assert (stats.ready, stats.scheduled, stats.parked) == (4, 2, 1)
    assert new.send("shop", "buy", unique_key="k").command_id == ids["keyed"]
    assert not old.send("shop", "buy", unique_key="k").duplicate


def crash_on(monkeypatch: pytest.MonkeyPatch, step: str, call: int, done: bool) -> None:
    """Die at a call of a step: before its transaction, or when that is committed."""
    session: Any = PostgresSession if step == "arrive" else SqliteSession
    whole, run = getattr(promotion, step), session.run
    calls, doomed = 0, False

    def crashing(*args: Any) -> Any:
        nonlocal calls, doomed
        calls += 1
        if calls == call and not done:
            raise KeyboardInterrupt
        doomed = calls == call
        return whole(*args)

    def run_and_die(self: Any, op: Any, **options: Any) -> Any:
        result = run(self, op, **options)
        if doomed:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(promotion, step, crashing)
    monkeypatch.setattr(session, "run", run_and_die)


@pytest.mark.parametrize("step", ["list_moving", "arrive", "confirm", "depart"])
@pytest.mark.parametrize("done", [True, False], ids=["after", "before"])
def test_a_crash_at_any_point_loses_nothing_and_doubles_nothing(
    old: SyncCommandBus, new: SyncCommandBus, monkeypatch: pytest.MonkeyPatch, step: str, done: bool
) -> None:
    found = fill(old)
    SyncTroubleshootingQueue(old).acting("ann").comment(found["parked"], "hm")
    ids = set(found.values())
    monkeypatch.setattr(promotion, "PIECE", 2)
    crash_on(monkeypatch, step, 2, done)
    with pytest.raises(KeyboardInterrupt):
        move(old, new, ORIGIN, WHERE)
    monkeypatch.undo()
    move(old, new, ORIGIN, WHERE)
    live = [r.command_id for r in new.query_commands(domain="shop")]
    assert sorted(live) == sorted(ids)
    assert {r.status for r in old.query_commands(domain="shop")} == {CommandStatus.CANCELED}
    stats = new.stats("shop")
    assert (stats.ready, stats.scheduled, stats.parked) == (4, 2, 1)
    assert new.verify_audit().problems == []
    (parked,) = SyncTroubleshootingQueue(new).list_troubleshooting()
    assert SyncTroubleshootingQueue(new).list_cases([parked])[0].comment == "hm"


def test_a_failure_at_any_statement_leaves_a_piece_where_it_was(
    old: SyncCommandBus, new: SyncCommandBus, tmp_path: Path
) -> None:
    SyncTroubleshootingQueue(old).acting("ann").comment(fill(old)["parked"], "hm")
    with (
        closing(Configuration("sqlite", f"sqlite:///{tmp_path}/jobs.db").open("threads")) as source,
        closing(postgres_configuration().open("threads")) as target,
    ):
        here, there = source.bus.scope, target.bus.scope
        depart = lambda: source.run(promotion.depart(here, WHERE, 0))  # noqa: E731
        assert fails_at_every_step(source, depart) >= 5
        moving = source.run(promotion.list_moving(here))
        arrive = lambda: target.run(promotion.arrive(there, [*moving.values()], ORIGIN))  # noqa: E731
        assert fails_at_every_step(target, arrive) >= 5
        confirm = lambda: source.run(promotion.confirm(here, moving))  # noqa: E731
        assert fails_at_every_step(source, confirm) >= len(moving)
        assert source.run(promotion.list_moving(here)) == {}
    assert len(new.query_commands(domain="shop")) == len(moving) == 7


def test_what_operators_did_arrives_linked_and_what_they_arranged_with_it(
    old: SyncCommandBus, new: SyncCommandBus
) -> None:
    desk, there = SyncTroubleshootingQueue(old), SyncTroubleshootingQueue(new)
    new.acting("cal").pause("elsewhere")
    ids = fill(old)
    parked = ids["parked"]
    desk.acting("ann").comment(parked, "hm")
    desk.acting("ann").operator_retry(parked)
    (taken,) = SyncWorker(old, "shop").receive(1)
    SyncWorker(old, "shop").fail(taken, PermanentCommandError("BROKEN", "still"))
    desk.acting("ann").comment(taken.command.command_id, "again")
    desk.acting("ann").assign(taken.command.command_id, "ben")
    before = desk.list_cases(desk.list_troubleshooting())
    move(old, new, ORIGIN, WHERE)
    assert there.list_cases(there.list_troubleshooting()) == before
    assert [one.command_id for one in there.list_assigned("ben")] == [taken.command.command_id]
    report = new.verify_audit()
    assert (report.links, report.problems) == (6, []), "the promotion is on record, too"
    assert old.verify_audit().sound
    assert old.session.run(old.scope.store.list_documents("case")) == []


def test_while_commands_run_nothing_moves(old: SyncCommandBus, new: SyncCommandBus) -> None:
    old.send_many([SendRequest("shop", "buy") for _ in range(3)])
    SyncWorker(old, "shop").receive(1)
    with pytest.raises(InvalidOperationError, match="1 commands are running"):
        move(old, new, ORIGIN, WHERE)
    assert len(new.query_commands(domain="shop")) == 0
    assert old.stats("shop").ready == 2


def test_what_a_dead_worker_held_moves_with_its_recorded_steps(
    old: SyncCommandBus, new: SyncCommandBus, tmp_path: Path
) -> None:
    sent = old.send("shop", "buy")
    (taken,) = SyncWorker(old, "shop").receive(1)
    step = old.scope.store.record_step(taken.claimed.seq, taken.claimed.lease_id, "charge", "7")
    assert old.session.run(step)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute("update commandbus_lease set until = 0")
    old.session.run(promotion.take_back(old.scope))
    assert move(old, new, ORIGIN, WHERE) == (1, 1)
    (taken,) = SyncWorker(new, "shop").receive(1)
    assert (taken.command.command_id, taken.claimed.crashes) == (sent.command_id, 1)
    assert new.session.run(new.scope.store.recorded_steps(taken.claimed.seq)) == {"charge": "7"}


def test_a_key_that_is_held_in_the_target_is_reported(old: SyncCommandBus, new: SyncCommandBus) -> None:
    old.send("shop", "buy", unique_key="k")
    holder = new.send("shop", "buy", unique_key="k").command_id
    with pytest.raises(InvalidOperationError, match=str(holder)):
        move(old, new, ORIGIN, WHERE)
    new.cancel(holder)
    assert move(old, new, ORIGIN, WHERE) == (1, 1)


def test_what_belongs_to_a_batch_stays(cli: Cli, old: SyncCommandBus, new: SyncCommandBus) -> None:
    batch = old.create_batch([SendRequest("shop", "buy") for _ in range(2)])
    one = old.send("shop", "buy").command_id
    old.pause("shop", "night")
    order = ("promote", old.url, new.url)
    dry = cli(*order, "--dry-run")
    assert "would move 1 waiting and 0 parked" in dry.err
    assert new.get_command(one) is None
    moved = cli(*order, "--yes", "--json", code=1)
    assert (moved.document["moved"], moved.document["left"]["in_batches"]) == (1, 2)
    assert "2 commands of batches stay" in moved.err
    assert new.get_command(one) is not None
    assert new.stats("shop").paused
    assert [one.action for one in new.list_actions()] == ["promote", "pause"]
    assert old.get_batch(batch.batch_id) is not None


def test_only_from_a_file_to_a_server(cli: Cli, old: SyncCommandBus, new: SyncCommandBus) -> None:
    assert "in this order" in cli("promote", new.url, old.url, "--yes", code=2).err
    with pytest.raises(ConfigurationError, match="sqlite"):
        new.session.run(promotion.survey(new.scope))
    with pytest.raises(ConfigurationError, match="postgresql"):
        promotion.check_arriving(old.scope)
