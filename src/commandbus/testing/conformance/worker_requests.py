"""What operators ask of workers: to be quiet, to go on, to stop, to run more or fewer at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.presence import WorkerInfo, WorkerRequest
from commandbus.errors import (
    ConfigurationError,
    InvalidArgumentError,
    InvalidOperationError,
    NotFoundError,
)
from commandbus.operations.fleet_starts import KEPT_SECONDS, list_starts, record_start
from commandbus.operations.presence import (
    HEARTBEAT,
    MISSED_MAX,
    REQUESTS,
    forget_dead_workers,
    report_worker,
)
from commandbus.services.presence import BUSY, Presence
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.sizing import Sizer

MOMENT = datetime(2030, 5, 17, 8, 0, 30, tzinfo=UTC)


def ask(bus: Harness, method: str, *args: Any, **options: Any) -> list[str]:
    found: list[str] = bus.call(getattr(bus.bus.acting("ada"), method), *args, **options)
    return found


def wait_until_listed(bus: Harness, count: int = 1) -> None:
    """A worker that has just begun need not have reported itself yet."""
    eventually(lambda: len(bus.call(bus.bus.list_workers)) == count)


def seen(bus: Harness, state: str) -> WorkerInfo:
    """The one worker, once it reports itself so."""

    def look() -> WorkerInfo | None:
        live = bus.call(bus.bus.list_workers)
        return live[0] if live and live[0].state == state else None

    found = eventually(look)
    assert found is not None
    return found


def report(bus: Harness, **fields: Any) -> WorkerInfo:
    """A worker that is live by its word."""
    reported: WorkerInfo = bus.worker()._presence(bus.runtime)
    info = msgspec.structs.replace(reported, **fields)
    bus.run(report_worker(bus.bus.scope, info, 0))
    return info


class WorkerRequestsSuite:
    def test_a_quiet_worker_finishes_what_it_holds_and_takes_nothing_until_it_is_resumed(
        self, bus: Harness
    ) -> None:
        first = bus.send()
        with Gate() as gate, bus.run_worker(registry_of(ship=gate), concurrency=2) as running:
            gate.wait_for(1)
            wait_until_listed(bus)
            (name,) = ask(bus, "quiet_workers", [running.worker.name], reason="a look at its memory")
            info = seen(bus, "QUIET")
            eventually(lambda: not running.worker._core._claiming)  # a claim may be on its way still
            asked = info.requested.quiet
            assert asked is not None
            assert (asked.actor, asked.reason, name) == ("ada", "a look at its memory", info.name)
            second = bus.send()
            gate.open()
            eventually(lambda: bus.get(first).status is CommandStatus.COMPLETED)
            eventually(lambda: running.worker._core.idle)
            answer = bus.call(bus.bus.why, second)
            assert [reason.code for reason in answer.reasons] == ["QUIET"]
            assert "is quiet (asked by ada at 20" in answer.summary
            assert bus.get(second).status is CommandStatus.PENDING
            ask(bus, "resume_workers", [name])
            eventually(lambda: bus.get(second).status is CommandStatus.COMPLETED)
            assert seen(bus, "RUNNING").requested == WorkerRequest()

    def test_another_worker_of_the_process_takes_what_a_quiet_one_leaves(self, bus: Harness) -> None:
        one, other = Recorder(), Recorder()
        with (
            bus.run_worker(registry_of(ship=one)) as silent,
            bus.run_worker(registry_of(ship=other)) as running,
        ):
            silent.wait_until_idle()
            running.wait_until_idle()
            wait_until_listed(bus, 2)
            ask(bus, "quiet_workers", [silent.worker.name])
            eventually(lambda: silent.worker._core.quiet)
            for count in range(1, 4):
                bus.send()
                other.wait_for(count)
            bus.send(DOMAIN, "ship", None, delay=5)
            bus.advance(6)
            other.wait_for(4)
        assert not one.commands

    def test_a_worker_is_stopped_with_patience(self, bus: Harness) -> None:
        command_id = bus.send()
        with Gate() as gate, bus.run_worker(registry_of(ship=gate)) as running:
            gate.wait_for(1)
            wait_until_listed(bus)
            ask(bus, "stop_workers", host=running.worker._presence("").host)
            assert seen(bus, "STOPPING").requested.stop is not None
            with pytest.raises(InvalidOperationError, match="was asked to stop by ada"):
                ask(bus, "resume_workers", [running.worker.name])
            gate.open()
            running.ended.result(20)
            assert running.worker.was_asked_to_stop
        assert bus.get(command_id).status is CommandStatus.COMPLETED
        assert not bus.call(bus.bus.list_workers)
        assert bus.run(bus.store.get_document(REQUESTS, running.worker.name)) is None

    def test_a_request_to_the_workers_of_a_domain_leaves_those_that_stop_alone(
        self, bus: Harness
    ) -> None:
        staying, stopping = report(bus), report(bus)
        ask(bus, "stop_workers", [stopping.name])
        assert ask(bus, "quiet_workers", domain=DOMAIN) == [staying.name]
        with pytest.raises(InvalidOperationError, match="was asked to stop by ada"):
            ask(bus, "quiet_workers", [staying.name, stopping.name])

    def test_slots_change_at_run_time(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 4)
        with Gate() as gate, bus.run_worker(registry_of(ship=gate), concurrency=1) as running:
            gate.wait_for(1)
            wait_until_listed(bus)
            ask(bus, "set_worker_concurrency", 3, domain=DOMAIN)
            gate.wait_for(3)
            info = eventually(lambda: [w for w in bus.call(bus.bus.list_workers) if w.concurrency == 3])
            assert (info[0].configured_concurrency, info[0].requested.concurrency) == (1, 3)
            sizer = Sizer(running.worker, 1, 8)
            bus.run(sizer.work(None))
            ask(bus, "set_worker_concurrency", 1, [running.worker.name])
            eventually(lambda: running.worker.concurrency == 1)
            assert gate.inside == 3
            assert not running.worker.is_resized
            gate.open()
            gate.wait_for(4)
        said = [(one.actor, one.action, one.subject) for one in bus.call(bus.bus.list_actions)]
        name = running.worker.name
        assert said == [
            ("ada", "resize_worker", f"{name}: RUNNING, 3 at once -> RUNNING, 1 at once"),
            ("ada", "resize_worker", f"{name}: RUNNING, 1 at once -> RUNNING, 3 at once"),
        ]

    def test_asking_twice_is_one_action(self, bus: Harness) -> None:
        info = report(bus)
        for _ in range(2):
            assert ask(bus, "quiet_workers", [info.name, info.name]) == [info.name]
        assert [one.action for one in bus.call(bus.bus.list_actions)] == ["quiet_worker"]

    def test_a_worker_is_named_by_either_end_of_its_name(self, bus: Harness) -> None:
        infos = [report(bus, name=name) for name in ("shop-one-12ab34cd", "shop-two-56ef78ab")]
        assert ask(bus, "quiet_workers", ["12ab34cd", "shop-t"]) == [info.name for info in infos]
        with pytest.raises(InvalidArgumentError, match="part of several names: shop-one"):
            ask(bus, "quiet_workers", ["shop-"])

    def test_a_worker_that_is_not_there_is_refused(self, bus: Harness) -> None:
        with pytest.raises(NotFoundError, match=r"has ended, or has another name\. None lives"):
            ask(bus, "quiet_workers", ["w-1"])
        with pytest.raises(NotFoundError, match="none lives at all"):
            ask(bus, "stop_workers", domain="elsewhere")
        info = report(bus)
        with pytest.raises(NotFoundError, match=f"live workers serve {DOMAIN}"):
            ask(bus, "stop_workers", domain="elsewhere")
        with pytest.raises(NotFoundError, match=f"live workers are on {info.host}"):
            ask(bus, "stop_workers", host="elsewhere")
        router = report(bus, name="router-1", processes=("trip",), command_types=())
        with pytest.raises(InvalidOperationError, match="is a process router"):
            ask(bus, "stop_workers", [router.name])
        for choice in ({}, {"workers": [info.name], "domain": DOMAIN}):
            with pytest.raises(InvalidArgumentError, match="Say which workers"):
                ask(bus, "stop_workers", **choice)

    def test_a_dead_worker_is_refused_and_its_request_goes_with_it(self, bus: Harness) -> None:
        info = report(bus)
        ask(bus, "quiet_workers", [info.name])
        bus.advance(MISSED_MAX * HEARTBEAT + 1)
        with pytest.raises(InvalidOperationError, match="does not live: its process is dead"):
            ask(bus, "resume_workers", [info.name])
        assert bus.run(forget_dead_workers(bus.bus.scope)) == 1
        assert bus.run(bus.store.get_document(REQUESTS, info.name)) is None

    def test_a_concurrency_that_the_pool_cannot_serve_is_refused(self, bus: Harness) -> None:
        info = report(bus, concurrency_max=5)
        with pytest.raises(InvalidArgumentError, match="at most 5 at once: its URL says pool_size=5"):
            ask(bus, "set_worker_concurrency", 6, [info.name])
        for wrong in (0, True, "4", 10_001):
            with pytest.raises(InvalidArgumentError, match="concurrency must be between 1 and"):
                ask(bus, "set_worker_concurrency", wrong, [info.name])

    def test_a_request_beyond_the_pool_leaves_a_worker_as_it_is(
        self, bus: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with bus.run_worker(registry_of(ship=Recorder()), concurrency=2) as running:

            def refuse(demand: Any) -> None:
                raise ConfigurationError("too many")

            monkeypatch.setattr(bus.engine, "check_demand", refuse, raising=False)
            running.worker._on_request(WorkerRequest(concurrency=9))
            assert running.worker.ping()
            assert running.worker.concurrency == 2
            running.worker._on_request(WorkerRequest())

    def test_a_worker_that_takes_commands_reports_its_memory_sooner(self, bus: Harness) -> None:
        taken, now = [0], [0.0]
        info = bus.worker()._presence(bus.runtime)
        presence = Presence(
            info, 30.0, lambda one: one, load=lambda: taken[0], monotonic=lambda: now[0]
        )
        assert presence.look()
        assert bus.run(presence.work(bus.bus.scope)) <= BUSY
        assert not presence.look()
        taken[0] = 1
        assert presence.look()
        bus.run(presence.work(bus.bus.scope))
        assert not presence.look()
        presence.nudged()
        assert presence.look()

    def test_starts_of_workers_are_kept_when_these_are_gone(self, bus: Harness) -> None:
        scope = bus.bus.scope
        one: WorkerInfo = bus.worker()._presence(bus.runtime)
        info = msgspec.structs.replace(one, domains=("shop",), started_at=MOMENT)
        bus.run(Presence(info, 30.0).work(scope))
        other = msgspec.structs.replace(info, name="other", domains=("mail", "shop"))
        bus.run(Presence(other, 30.0).work(scope))
        bus.advance(3600)
        (start,) = bus.run(list_starts(scope))
        assert (start.at, start.workers, start.domains) == (MOMENT, 2, ("mail", "shop"))
        bus.advance(KEPT_SECONDS)
        bus.run(record_start(scope, msgspec.structs.replace(info, version="2")))
        assert [one.version for one in bus.run(list_starts(scope))] == ["2"]
