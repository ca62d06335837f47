"""Routers: many at once, failing, dying, and never doing anything twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.process.declaration import Process, step
from commandbus.domain.process.values import ProcessStatus
from commandbus.errors import (
    CommandBusError,
    ConfigurationError,
    InvalidOperationError,
    StoreUnavailable,
)
from commandbus.operations.routing import route
from commandbus.operations.scope import Await, Send
from commandbus.runtimes import processes
from commandbus.runtimes.probes import livez, readyz
from commandbus.services.batch_closer import BatchCloser
from commandbus.services.process_router import RouterLoop, RouterMetrics, router_settings
from commandbus.store.op import Op, Statement
from commandbus.store.records import ClaimRequest
from commandbus.store.suspects import LAST_CHANCE, NONE
from commandbus.store.wakeup import Waiter, WakeHub
from commandbus.testing.conformance.helpers import registry_of, require, spy_on, together
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import DOMAIN, BookTrip, Parallel, Sagas, Trip
from commandbus.testing.waiting import eventually
from commandbus.worker.events import StopRequested
from commandbus.worker.pace import SWEEP_INTERVAL

T = TypeVar("T")


def loop_of(sagas: Sagas) -> RouterLoop:
    """The loop of a router that no runtime runs."""
    scope, settings = sagas.bus.bus.scope, router_settings(1, 100, 60, 60, 30)
    metrics, closer = RouterMetrics(), BatchCloser(())
    return RouterLoop(scope, WakeHub(), sagas.declarations, settings, "by hand", metrics, closer)


def carry(
    bus: Harness, loop: RouterLoop, after: dict[str, Callable[[], Exception | None]] | None = None
) -> list[str]:
    """Carry a loop on until it ends or has nothing to do; returns the names of the ops that it ran.
    `after` an op of some name something happens; an error reaches the loop instead of the answer. Each
    turn takes so long that the next claim looks at leases, too."""
    flow, now, names = loop.run(), 0.0, list[str]()
    with suppress(StopIteration):
        asked = next(flow)
        while not (isinstance(asked, Await) and asked.seconds > 1):
            if isinstance(asked, Await):
                now += asked.seconds + SWEEP_INTERVAL
                asked = flow.send(now)
                continue
            op = asked.op if isinstance(asked, Send) else asked
            names.append(getattr(op, "__name__", ""))
            answer: Any = None
            error: Exception | None = None
            try:
                answer = bus.run(op)
            except CommandBusError as failure:
                error = failure
            if after and names[-1] in after:
                error = after[names[-1]]() or error
            asked = flow.send(answer) if error is None else flow.throw(error)
    return names


class RoutingSuite:
    def test_a_process_of_a_newer_router_is_left_to_it(self, bus: Harness) -> None:
        sagas, stranger = Sagas(bus, BookTrip), Sagas(bus, Foreign)
        process_id = sagas.start()
        sagas.end("book_hotel", "Grand")
        stranger.route()
        assert sagas.get(process_id).current_steps == ["hotel"]
        bus.advance(2)
        sagas.route()
        assert sagas.get(process_id).current_steps == ["car"]

    def test_a_routing_whose_commit_is_unknown_is_not_repeated(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.end("book_hotel", "Grand")
        cut = [StoreUnavailable("cut after the commit")]
        carried = carry(bus, loop_of(sagas), {"route": lambda: cut.pop() if cut else None})
        assert carried.count("route") == 1
        assert "REPLY_IGNORED hotel" not in sagas.happened(process_id)
        assert sagas.get(process_id).current_steps == ["car"]

    def test_replies_that_a_claim_finds_during_a_stop_go_back(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.end("book_hotel", "Grand")
        loop = loop_of(sagas)
        assert "route" not in carry(bus, loop, {"claim": lambda: loop.post(StopRequested(0.0))})
        assert sagas.route() == 1, "it waits for no lease"
        assert sagas.get(process_id).current_steps == ["car"]

    def test_a_stop_during_a_routing_begins_no_claim(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        sagas.start()
        sagas.end("book_hotel", "Grand")
        loop = loop_of(sagas)
        carried = carry(bus, loop, {"route": lambda: loop.post(StopRequested(0.0))})
        assert carried[-1] == "route"

    def test_a_reply_that_a_refused_login_meets_is_routed_later(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.end("book_hotel", "Grand")
        refused = ConfigurationError("password authentication failed")
        with spy_on(bus.store, "lock_processes", refused):
            assert carry(bus, loop_of(sagas)).count("route") == 2
        assert sagas.get(process_id).current_steps == ["car"]

    def test_nothing_goes_on_giving_up_after_the_end_of_a_router(
        self, bus: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not even if it is asked to stop while it ends."""
        monkeypatch.setattr(processes, "SHUTDOWN_SECONDS", 0.01)
        hub = bus.bus.hub
        unregister = hub.unregister
        with bus.run_router(BookTrip) as router:

            def stop_meanwhile(waiter: Waiter) -> None:
                router._stop()
                unregister(waiter)

            monkeypatch.setattr(hub, "unregister", stop_meanwhile)
        eventually(lambda: processes.GIVING_UP not in [one.name for one in threading.enumerate()])
        assert not router.is_running

    def test_the_router_of_a_worker_leaves_it_to_say_what_is_known_of_others(
        self, bus: Harness
    ) -> None:
        """By the length of its own leases."""
        registry = registry_of(DOMAIN, pay=Recorder())
        registry.process(BookTrip)
        with spy_on(bus.store, "consult") as consulted, bus.run_worker(registry):
            eventually(lambda: bool(bus.bus.routers))
            assert consulted.calls <= 1

    def test_a_reply_whose_lease_ends_before_it_is_routed_counts_once(self, bus: Harness) -> None:
        """The router itself claims it again, so it is there under two leases, of which one counts."""
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.end("book_hotel", "Grand")
        with spy_on(bus.store, "lock_processes", StoreUnavailable("gone")):
            carried = carry(bus, loop_of(sagas), {"route": lambda: bus.advance(31)})
        assert carried.count("route") == 2
        assert sagas.get(process_id).current_steps == ["car"]

    def test_a_reply_whose_routers_died_twice_is_routed_alone(self, bus: Harness) -> None:
        """What kills routers takes no other reply with it when it is parked."""
        sagas = Sagas(bus, BookTrip)
        ids = sagas.start_many([Trip(), Trip()])
        for _ in ids:
            sagas.end("book_hotel", "Grand")
        for _ in range(LAST_CHANCE):
            doomed = ClaimRequest(("book_trip.replies",), 10, "doomed", 30.0)
            assert len(bus.run(bus.store.claim(doomed)).claimed) == 2
            bus.advance(31)
            assert not bus.run(bus.store.claim(msgspec.structs.replace(doomed, suspects=NONE))).claimed
        left: list[int] = []
        look = lambda: left.append(bus.stats("book_trip.replies").ready)  # noqa: E731
        assert carry(bus, loop_of(sagas), {"route": look}).count("route") == 2
        assert left == [1, 0], "the other one is not even under lease"
        assert [sagas.get(one).current_steps for one in ids] == [["car"], ["car"]]

    def test_a_router_and_a_worker_carry_it_out(self, bus: Harness) -> None:
        hotel, car = Recorder(result="Grand"), Recorder()
        registry = registry_of(DOMAIN, book_hotel=hotel, book_car=car, pay=Recorder())
        sagas = Sagas(bus, BookTrip)
        with bus.run_worker(registry, DOMAIN), bus.run_router(BookTrip) as router:
            ids = sagas.start_many([Trip() for _ in range(20)])
            for process_id in ids:
                record = bus.call(sagas.manager.wait, process_id, 20)
                assert record.status is ProcessStatus.COMPLETED
            eventually(lambda: router.metrics.routed >= 60)
        assert len(hotel.commands) == len(car.commands) == 20

    def test_a_stop_before_the_run_begins_counts(self, bus: Harness) -> None:
        """A program that starts a run in a task or thread cannot know whether it has begun."""
        router = bus.router_class(bus.bus, BookTrip, concurrency=2)
        bus.call(router.stop)
        bus.spawn(router.run).result(20)
        assert not router.is_running

    def test_a_stopped_router_may_run_again(self, bus: Harness) -> None:
        router = bus.router_class(bus.bus, BookTrip)
        for _ in range(2):
            running = bus.spawn(router.run)
            eventually(lambda: router.is_running)
            bus.call(router.stop, 20)
            assert running.result(20) is None

    def test_a_second_run_of_the_same_router_is_refused(self, bus: Harness) -> None:
        """And changes nothing about the first, which is stopped as ever."""
        with bus.run_router(BookTrip) as router, pytest.raises(InvalidOperationError, match="already"):
            bus.call(router.run)

    def test_many_routers_at_once_do_nothing_twice(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        ids = sagas.start_many([Trip() for _ in range(40)])
        for _ in ids:
            sagas.end("book_hotel", "Grand")
        for result in together(4, lambda _: sagas.route()):
            assert not isinstance(result, BaseException), result
        assert sagas.waiting() == ["book_car"] * 40
        for process_id in ids:
            assert sagas.happened(process_id).count("STEP_COMPLETED hotel") == 1

    def test_several_loops_share_the_replies_of_steps_that_run_at_once(self, bus: Harness) -> None:
        names = ("begin", "hotel", "car", "guide", "confirm")
        handlers = {name: Recorder() for name in names}
        sagas = Sagas(bus, Parallel)
        ids = sagas.start_many([Trip() for _ in range(30)])
        with (
            bus.run_worker(registry_of(DOMAIN, **handlers), DOMAIN),
            bus.run_router(Parallel, concurrency=4, batch_size=5),
        ):
            for process_id in ids:
                record = bus.call(sagas.manager.wait, process_id, 20)
                assert record.status is ProcessStatus.COMPLETED
        assert [len(handler.commands) for handler in handlers.values()] == [30] * 5

    def test_a_crash_at_any_statement_changes_nothing(self, bus: Harness) -> None:
        require(bus, "durable")
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.end("book_hotel", "Grand")
        claim = bus.store.claim(ClaimRequest(("book_trip.replies",), 10, "test-router", 600.0))
        claimed = bus.run(claim).claimed
        before, crashes = sagas.get(process_id), 0
        while True:
            op = route(bus.bus.scope, sagas.declarations, claimed, "test-router")
            try:
                assert bus.run(cut(op, crashes)).routed == 1
                break
            except Crash:
                crashes += 1
            assert sagas.get(process_id) == before
            assert sagas.waiting() == []
        assert crashes > 3
        assert sagas.waiting() == ["book_car"]
        assert sagas.happened(process_id).count("STEP_COMPLETED hotel") == 1

    @pytest.mark.parametrize("failure", [StoreUnavailable("gone"), RuntimeError("boom")])
    def test_a_router_outlives_a_failure_and_loses_nothing(
        self, bus: Harness, failure: Exception
    ) -> None:
        sagas = Sagas(bus, BookTrip)
        ids = sagas.start_many([Trip(), Trip()])
        for _ in ids:
            sagas.end("book_hotel", "Grand")
        with spy_on(bus.store, "lock_processes", failure), bus.run_router(BookTrip) as router:
            # Long before the lease of what it holds ends.
            eventually(lambda: sagas.waiting() == ["book_car"] * 2)
            eventually(lambda: router.metrics.routed == 2)
        assert bus.stats("book_trip.replies").parked == 0

    @pytest.mark.parametrize("what", ["claim", "next_process_due"])
    def test_a_router_whose_statements_fail_for_long_is_not_healthy(
        self, bus: Harness, what: str
    ) -> None:
        """Nor is a worker of the same bus, whose probes name the router."""
        worker, router = bus.worker(), bus.router_class(bus.bus, BookTrip, timer_interval=0.1)
        moment, away = [0.0], StoreUnavailable("It is away.")
        router.health_status._monotonic = lambda: moment[0]

        def judged() -> list[str]:
            return [one.health_status.state for one in (router, worker)]

        with spy_on(bus.store, what, *[away] * 1000):
            running = bus.spawn(router.run)
            eventually(lambda: router.health_status.report().consecutive_failures > 0)
            assert judged() == ["HEALTHY", "HEALTHY"]
            moment[0] = 30.0
            assert judged() == ["DEGRADED", "DEGRADED"]
            (reason,) = router.health_status.reasons
            assert "in a row failed within 30 s" in reason
            assert f"{router.name}: " in str(readyz(worker)[1]["warnings"])
            moment[0] = 60.0
            assert judged() == ["CRITICAL", "CRITICAL"]
            assert livez(worker)[1]["health"]["state"] == "CRITICAL"
        eventually(lambda: judged() == ["HEALTHY", "HEALTHY"])
        bus.call(router.stop, 20)
        running.result(20)
        assert worker.health_status.routers == {}

    def test_a_reply_that_cannot_be_routed_is_parked_alone(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        ids = sagas.start_many([Trip(), Trip()])
        for _ in ids:
            sagas.end("book_hotel", "Grand")
        errors = (RuntimeError("boom"), RuntimeError("boom"))
        with spy_on(bus.store, "lock_processes", *errors), bus.run_router(BookTrip):
            eventually(lambda: sagas.waiting() == ["book_car"])
            eventually(lambda: bus.stats("book_trip.replies").parked == 1)
        waiting = bus.call(bus.bus.list_processes, status="WAITING_FOR_TROUBLESHOOTING")
        assert len(waiting) == 1
        bus.call(bus.bus.retry_process, waiting[0].process_id)
        sagas.route()
        assert sagas.waiting() == ["book_car"] * 2

    def test_a_router_that_died_before_its_commit_changed_nothing(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.end("book_hotel", "Grand")
        claim = bus.store.claim(ClaimRequest(("book_trip.replies",), 10, "doomed", 5.0))
        assert len(bus.run(claim).claimed) == 1
        assert sagas.route() == 0
        bus.advance(6)
        assert sagas.route() == 1
        assert sagas.get(process_id).current_steps == ["car"]

    def test_a_router_whose_lease_was_taken_over_changes_nothing(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.end("book_hotel", "Grand")
        claim = bus.store.claim(ClaimRequest(("book_trip.replies",), 10, "slow", 5.0))
        claimed = bus.run(claim).claimed
        bus.advance(6)
        sagas.route()
        assert bus.run(route(bus.bus.scope, sagas.declarations, claimed, "slow")).routed == 0
        assert sagas.waiting() == ["book_car"]
        assert sagas.happened(process_id).count("STEP_COMPLETED hotel") == 1


class Crash(Exception):  # noqa: N818 - an event of the test
    """The process dies here."""


def cut(op: Op[T], statements: int) -> Op[T]:
    """An op that dies after so many statements, before its commit."""
    try:
        wanted = next(op)
        while True:
            if isinstance(wanted, Statement):
                if statements == 0:
                    raise Crash
                statements -= 1
            wanted = op.send((yield wanted))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        op.close()


class Foreign(Process[dict[str, Any]]):
    """Another process whose replies come to the same queue."""

    reply_to = "book_trip.replies"

    @step
    def only(self, state: dict[str, Any]) -> SendRequest:
        return SendRequest(DOMAIN, "foreign")
