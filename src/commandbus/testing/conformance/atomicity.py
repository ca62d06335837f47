"""An operation is all or nothing: a failure after any of its steps leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.outcome import Succeeded
from commandbus.domain.schedule import Schedule
from commandbus.domain.unique import Unique
from commandbus.errors import (
    BusinessRuleException,
    DuplicateCommandError,
    InvalidOperationError,
    PermanentCommandError,
)
from commandbus.operations import (
    batch_documents,
    declaring,
    erasure,
    fleet_starts,
    history,
    ledger,
    parked_notes,
    presence,
    restarts,
    retention,
    routing,
    schedules,
)
from commandbus.operations.batches import close_open_batches
from commandbus.store import moving
from commandbus.store.op import Op, Statement
from commandbus.store.processes import ProcessFilter
from commandbus.store.records import AuditFilter, Claimed, ClaimRequest, CommandFilter, Settlement
from commandbus.store.replies import follow_up
from commandbus.testing.conformance.helpers import park, require
from commandbus.testing.conformance.worker_requests import report
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.sagas import DOMAIN as TRAVEL
from commandbus.testing.sagas import Approved, BookTrip, Sagas, Timed, Trip
from commandbus.worker.handlers import HandlerRegistry

Act = Callable[[], Any]

KINDS = {
    *("unique", "cancellation", "breaker", "schedule"),
    *(parked_notes.KIND, ledger.KIND, ledger.HEAD, ledger.OPEN, ledger.ACTION, batch_documents.KIND),
    *(declaring.KIND, moving.KIND, presence.REQUESTS, presence.KIND, fleet_starts.KIND),
    *(restarts.KIND, parked_notes.ESCALATION, "history"),
    *(history._kind(grain, DOMAIN) for grain in history.Grain),
}
"""Of documents that these operations write; a test fails when one is missing here."""


SENDS = (
    *("a limited sender", "a replaced command", "many with keys", "one more in a batch", "a batch"),
    *("more in a batch", "a chain"),
)


class InjectedError(Exception):
    """The failure that a test wants."""


class FailingStore:
    """A store whose op fails after so many of the statements and calls that it is composed of."""

    def __init__(self, store: Any, calls: int) -> None:
        self._store, self._left = store, calls

    def __getattr__(self, name: str) -> Any:
        found: Any = getattr(self._store, name)
        if name.startswith("_") or not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Op[Any]:
            if name == "put_document":
                assert args[0].kind in KINDS
            return self._then_fail(cast("Op[Any]", found(*args, **kwargs)))

        return call

    def _then_fail(self, op: Op[Any]) -> Op[Any]:
        running = iter(op)
        try:
            step = next(running)
            while True:
                try:
                    rows = yield step
                except Exception as error:  # the op decides; unhandled, it comes straight back
                    step = running.throw(error)
                    continue
                if isinstance(step, Statement):
                    self._count()
                step = running.send(rows)
        except StopIteration as done:
            self._count()
            return done.value

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise InjectedError


def everything(bus: Harness) -> dict[str, Any]:
    """What the store keeps, without what changes by itself. One op, because tests look after every
    step, and each op of its own would go through the threads of a runtime."""
    found: dict[str, Any] = bus.engine.session.run(_everything(bus.store), read=True)
    return found


def _everything(store: Any) -> Op[dict[str, Any]]:
    records = yield from store.query(CommandFilter(limit=1_000))
    rows = yield from store.query_processes(ProcessFilter(limit=100))
    domains = yield from store.domains()
    documents: dict[str, Any] = {}
    for kind in sorted(KINDS):
        documents[kind] = yield from store.list_documents(kind, limit=1_000)
    batches = [UUID(document.key) for document in documents[batch_documents.KIND]]
    steps, events, stats = {}, {}, []
    for record in records:
        steps[record.sequence] = yield from store.recorded_steps(record.sequence)
    for row in rows:
        events[row.process_id] = yield from store.process_events(row.process_id)
    for domain in domains:
        found = yield from store.stats(domain)
        stats.append(msgspec.structs.replace(found, oldest_ready_age=None))
    return {
        "commands": records,
        # A trail is composed of these and of its record.
        "trails": (yield from store.search_audit(AuditFilter(limit=1_000))),
        "processes": [msgspec.structs.replace(row, age=0) for row in rows],
        "process events": events,
        "steps": steps,
        "documents": documents,
        "batches": (yield from store.batch_counts(batches)),
        "limits": (yield from store.limits(None)),
        "domains": domains,
        "stats": stats,
    }


def held_by(bus: Harness) -> dict[UUID, int]:
    """How often a worker can take each waiting command."""
    request = ClaimRequest(tuple(bus.run(bus.store.domains())), 100, "look", 30.0, sweep=True)
    taken = bus.run(bus.store.claim(request)).claimed
    return {one.command_id: one.attempt for one in taken}


def fails_at_every_step(bus: Harness, act: Act) -> int:
    """Let an operation fail after each of its steps until it has no more; returns how many it had."""
    scope, store = bus.bus.scope, bus.bus.scope.store
    before, step = everything(bus), 0
    while True:
        step += 1
        scope.store = FailingStore(store, step)
        try:
            act()
        except InjectedError:
            scope.store = store
            assert everything(bus) == before, f"something was left after step {step}"
        else:
            scope.store = store
            assert everything(bus) != before, "the operation did nothing"
            return step - 1
        finally:
            scope.store = store


def _batch(bus: Harness) -> UUID:
    members = [SendRequest(DOMAIN, "ship", {"n": 1}), SendRequest(DOMAIN, "ship", {"n": 2})]
    batch_id: UUID = bus.call(bus.bus.create_batch, members).batch_id
    return batch_id


def _sending(bus: Harness) -> dict[str, Act]:
    bus.call(bus.bus.set_limit, DOMAIN, rate=100, per_sender=True)
    bus.send(unique_key="first", reply_to="answers")
    batch_id = _batch(bus)
    key = Unique(on_conflict="replace", window=60)
    more = SendRequest(DOMAIN, "ship", {"n": 3})
    return {
        "a limited sender": lambda: bus.send(sender="shop"),
        "a replaced command": lambda: bus.send(unique_key="first", unique=key),
        "many with keys": lambda: bus.call(
            bus.bus.send_many,
            [SendRequest(DOMAIN, "ship", unique_key=f"k{n}", unique=key) for n in range(3)],
        ),
        "one more in a batch": lambda: bus.send(batch_id=batch_id),
        "a batch": lambda: _batch(bus),
        "more in a batch": lambda: bus.call(bus.bus.add_to_batch, batch_id, [more, more]),
        "a chain": lambda: bus.call(bus.bus.chain, more, more),
    }


def _operating(bus: Harness) -> dict[str, Act]:
    desk = bus.troubleshooting
    parked = [park(bus, {"n": n}, reply_to="answers") for n in range(4)]
    waiting = bus.send(reply_to="answers", delay=3600, batch_id=_batch(bus))
    running = bus.send(priority=0)
    # Its lease must outlast all actions: with PGMQ, a command whose lease ended counts as ready.
    taken = bus.take(bus.worker(), visibility_timeout=3600)
    assert taken.command.command_id == running
    nightly = Schedule(name="nightly", domain=DOMAIN, command_type="x", cron="0 0 * * *")
    name = report(bus).name
    return {
        "retry": lambda: bus.call(desk.operator_retry, parked[0], data={"n": 9}),
        "cancel parked": lambda: bus.call(desk.operator_cancel, parked[1], reason="no"),
        "complete": lambda: bus.call(desk.operator_complete, parked[2], {"ok": 1}),
        "comment": lambda: bus.call(desk.comment, parked[3], "hm"),
        "assign": lambda: bus.call(desk.assign, parked[3], "ben"),
        "reschedule": lambda: bus.call(bus.bus.reschedule, waiting, delay=5400),
        "reprioritise": lambda: bus.call(bus.bus.reprioritise, waiting, "low"),
        "cancel waiting": lambda: bus.call(bus.bus.cancel, waiting, reason="no"),
        "cancel running": lambda: bus.call(bus.bus.cancel, running, reason="no"),
        "pause": lambda: bus.call(bus.bus.pause, DOMAIN, reason="deploy"),
        "resume": lambda: bus.call(bus.bus.resume, DOMAIN),
        "limit": lambda: bus.call(bus.bus.set_limit, DOMAIN, rate=1, per_sender=True),
        "no limit": lambda: bus.call(bus.bus.clear_limit, DOMAIN, per_sender=True),
        "open breaker": lambda: bus.call(bus.bus.open_breaker, "bank"),
        "reset breaker": lambda: bus.call(bus.bus.reset_breaker, "bank"),
        "put schedule": lambda: bus.call(bus.bus.put_schedule, nightly),
        "trigger": lambda: bus.call(bus.bus.trigger_schedule, "nightly"),
        "disable schedule": lambda: bus.call(bus.bus.disable_schedule, "nightly"),
        "enable schedule": lambda: bus.call(bus.bus.enable_schedule, "nightly"),
        "delete schedule": lambda: bus.call(bus.bus.delete_schedule, "nightly"),
        "resend": lambda: bus.call(bus.bus.resend, parked[1]),
        "quiet worker": lambda: bus.call(bus.bus.quiet_workers, [name]),
        "resume worker": lambda: bus.call(bus.bus.resume_workers, [name]),
        "resize worker": lambda: bus.call(bus.bus.set_worker_concurrency, 2, [name]),
        "stop worker": lambda: bus.call(bus.bus.stop_workers, [name]),
        "purge": lambda: bus.call(bus.bus.purge, DOMAIN),
    }


def _declared(bus: Harness, cron: str, rate: str) -> HandlerRegistry:
    """A registry with two schedules, and a limit where the engine has any."""
    registry = HandlerRegistry()
    limit: dict[str, Any] = {"rate": rate} if bus.capabilities.gates else {}
    for command_type in ("ship", "pack"):
        handler = registry.handler(DOMAIN, command_type, **limit)
        registry.schedule(cron=cron)(handler(lambda command, context: None))
    return registry


def _route(bus: Harness, sagas: Sagas, claimed: list[Claimed]) -> None:
    bus.run(routing.route(bus.bus.scope, sagas.declarations, claimed, "router"))


class AtomicitySuite:
    @pytest.mark.parametrize("name", SENDS)
    def test_a_send_that_fails_on_the_way_leaves_nothing(self, bus: Harness, name: str) -> None:
        assert fails_at_every_step(bus, _sending(bus)[name]) >= 2

    def test_an_operators_action_that_fails_on_the_way_leaves_nothing(self, bus: Harness) -> None:
        for name, act in _operating(bus).items():
            steps = fails_at_every_step(bus, act)
            assert steps >= 1, name

    def test_processes_are_started_and_driven_all_or_nothing(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        assert fails_at_every_step(bus, lambda: sagas.start(Trip())) >= 2
        queues = tuple({one.reply_to for one in sagas.declarations.values()})
        no = BusinessRuleException("NO", "no")
        for step, result in (("book_hotel", "Grand"), ("book_car", None), ("pay", no)):
            sagas.end(step, result)
            claimed = bus.run(bus.store.claim(ClaimRequest(queues, 100, "router", 30.0))).claimed
            act = partial(_route, bus, sagas, claimed)
            assert fails_at_every_step(bus, act) >= 3

    def test_a_parked_step_is_called_off_all_or_nothing(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.done("book_hotel", PermanentCommandError("BROKEN", "no"))
        bus.call(bus.bus.cancel_process, process_id, "called off")
        queues = tuple({one.reply_to for one in sagas.declarations.values()})
        claimed = bus.run(bus.store.claim(ClaimRequest(queues, 100, "router", 30.0))).claimed
        assert fails_at_every_step(bus, partial(_route, bus, sagas, claimed)) >= 3
        assert [record.status for record in bus.query(domain=TRAVEL)] == ["CANCELED"]

    def test_signals_deadlines_and_ends_of_processes_are_all_or_nothing(self, bus: Harness) -> None:
        sagas = Sagas(bus, Approved, Timed)
        process_id = sagas.start()
        signal = lambda: bus.call(bus.bus.signal_process, process_id, "approval", True)  # noqa: E731
        assert fails_at_every_step(bus, signal) >= 2
        timed = bus.call(bus.manager_class(bus.bus, Timed).start, Trip())
        bus.advance(3_600)
        timers = lambda: bus.run(  # noqa: E731 - an act like the others
            routing.fire_timers(bus.bus.scope, sagas.declarations, "router", 100)
        )
        assert fails_at_every_step(bus, timers) >= 2
        assert sagas.get(timed) is not None
        cancel = lambda: bus.call(bus.bus.cancel_process, process_id, "no")  # noqa: E731
        assert fails_at_every_step(bus, cancel) >= 2

    def test_operators_drive_processes_all_or_nothing(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        (process_id,) = bus.call(sagas.manager.create_batch, [Trip()]).process_ids
        sagas.done("book_hotel", "Grand")
        sagas.done("book_car")
        sagas.done("pay", BusinessRuleException("NO", "no"))
        sagas.done("cancel_car", PermanentCommandError("BROKEN", "no"))
        retry = lambda: bus.call(bus.bus.retry_process, process_id)  # noqa: E731
        assert fails_at_every_step(bus, retry) >= 2
        sagas.done("cancel_car", BusinessRuleException("NO", "never"))
        skip = lambda: bus.call(bus.bus.skip_compensation, process_id, "sold")  # noqa: E731
        assert fails_at_every_step(bus, skip) >= 2
        end = lambda: bus.call(bus.bus.end_process, process_id, "lost")  # noqa: E731
        assert fails_at_every_step(bus, end) >= 4

    def test_declarations_are_brought_into_the_store_all_or_nothing(self, bus: Harness) -> None:
        first, second = _declared(bus, "0 2 * * *", "10/m"), _declared(bus, "0 3 * * *", "20/m")
        assert fails_at_every_step(bus, partial(bus.call, bus.bus.declare, first)) >= 6
        assert fails_at_every_step(bus, partial(bus.call, bus.bus.declare, second)) >= 6
        bus.call(bus.bus.disable_schedule, f"{DOMAIN}.ship")
        bus.call(bus.bus.delete_schedule, f"{DOMAIN}.pack")
        overwrite = partial(bus.call, bus.bus.declare, first, overwrite=True, reason="as in the code")
        assert fails_at_every_step(bus, overwrite) >= 6

    def test_a_prune_that_fails_on_the_way_has_forgotten_and_recorded_whole_pieces(
        self, bus: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "PIECE", 2)
        worker, total = bus.worker(), 6
        for _ in range(total):
            bus.send()
            bus.call(worker.complete, bus.take(worker))
        bus.advance(10)
        scope, store = bus.bus.scope, bus.bus.scope.store
        failed, forgotten = 0, [0]
        while True:
            scope.store = FailingStore(store, failed + 1)
            try:
                bus.call(bus.bus.prune, {"COMPLETED": 1.0})
            except InjectedError:
                failed += 1
            else:
                break
            finally:
                scope.store = store
            forgotten.append(total - len(bus.query(status="COMPLETED")))
            recorded = [int(one.subject.split()[0]) for one in bus.call(bus.bus.list_actions)]
            assert sum(recorded) == forgotten[-1]
            assert all(size == retention.PIECE for size in recorded)
        assert forgotten == sorted(forgotten)
        assert set(forgotten) >= {0, 2, 4}
        assert not bus.query(status="COMPLETED")

    def test_services_do_their_work_all_or_nothing(self, bus: Harness) -> None:
        scope = bus.bus.scope
        bus.call(
            bus.bus.create_batch, [SendRequest(DOMAIN, "ship")],
            on_complete=SendRequest("answers", "batch_done"),
        )  # fmt: skip
        worker = bus.worker()
        bus.call(worker.complete, bus.take(worker))
        close = lambda: bus.run(close_open_batches(scope, [DOMAIN]))  # noqa: E731
        assert fails_at_every_step(bus, close) >= 4
        every = Schedule(name="often", domain=DOMAIN, command_type="x", every=60)
        bus.call(bus.bus.put_schedule, every)
        bus.advance(3_600)
        assert fails_at_every_step(bus, lambda: bus.run(schedules.tick(scope))) >= 3
        record = bus.query(status="COMPLETED")[0]
        erase = lambda: bus.run(  # noqa: E731 - an act like the others
            erasure._erase_piece(scope, [record], erasure._Work("ada", "asked for", False, False))
        )
        assert fails_at_every_step(bus, erase) >= 3
        bus.advance(10)
        keep = {"COMPLETED": 1.0}
        assert fails_at_every_step(bus, lambda: bus.run(retention.retain(scope, keep, 0))) >= 2

    def test_an_outcome_whose_follow_up_cannot_be_sent_is_not_recorded(self, bus: Harness) -> None:
        taken_id = bus.send(delay=3600)
        command_id = bus.send(reply_to="answers")
        (claimed,) = bus.run(bus.store.claim(ClaimRequest((DOMAIN,), 1, "w", 30.0))).claimed
        assert claimed.command_id == command_id
        double = follow_up(DOMAIN, "ship", "null", taken_id, taken_id)
        double = msgspec.structs.replace(double, command_id=taken_id)
        settlement = Settlement(
            claimed.seq, claimed.lease_id, claimed.attempt, Succeeded(None), sends=(double,)
        )
        before = everything(bus)
        with pytest.raises(DuplicateCommandError):
            bus.run(bus.store.settle([settlement]))
        assert everything(bus) == before

    def test_work_that_was_undone_can_be_claimed_as_before(self, bus: Harness) -> None:
        require(bus, "gates")
        limited = bus.send(group_key="a")
        first, second = bus.send(group_key="a"), bus.send(unique_key="k")
        store = bus.bus.scope.store

        def then_fail(op: Op[Any]) -> Op[Any]:
            yield from op
            raise InjectedError

        for op in (
            store.cancel(DOMAIN, limited, "no", None),
            store.cancel(DOMAIN, second, "no", None),
            store.set_paused(DOMAIN, True, None, None),
            store.claim(ClaimRequest((DOMAIN,), 10, "w", 30.0)),
            store.purge(None),
        ):
            with pytest.raises(InjectedError):
                bus.run(then_fail(op))
        batch_id = _batch(bus)
        with pytest.raises(InvalidOperationError, match="exists"):
            bus.call(bus.bus.create_batch, [SendRequest(DOMAIN, "more")], batch_id=batch_id)
        taken = held_by(bus)
        assert taken[limited] == taken[second] == 1
        assert first not in taken
        assert not bus.query(command_type="more")
