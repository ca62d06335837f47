"""Processes: started, driven on by replies, looked at, undone in reverse."""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import uuid4

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.process.decisions import RUNS_KEPT_MAX
from commandbus.domain.process.declaration import END, Process, step
from commandbus.domain.process.values import ProcessStatus
from commandbus.domain.reply import REPLY_TYPE, Reply
from commandbus.errors import (
    BusinessRuleException,
    ConfigurationError,
    DuplicateProcessError,
    InvalidArgumentError,
    InvalidOperationError,
    PayloadError,
    PermanentCommandError,
    ProcessNotFoundError,
)
from commandbus.operations.processes import ProcessStart
from commandbus.testing.conformance.helpers import smuggle, together
from commandbus.testing.conformance.transactions import transaction
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import DOMAIN, BookTrip, Choosy, Parallel, Sagas, Trip

T = TypeVar("T")
NO = BusinessRuleException("NO_ROOM", "everything is taken")


class ProcessSuite:
    def test_replies_drive_it_to_its_end(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start(Trip(to="Oslo"))
        assert sagas.status(process_id) == "RUNNING"
        assert sagas.get(process_id).current_steps == ["hotel"]
        sagas.done("book_hotel", "Grand")
        assert sagas.get(process_id).state["hotel"] == "Grand"
        sagas.done("book_car")
        sagas.done("pay")
        record = sagas.get(process_id)
        assert (record.status, record.current_steps) == (ProcessStatus.COMPLETED, [])
        assert record.finished_at is not None
        assert sagas.happened(process_id) == [
            "STARTED",
            "STEP_SENT hotel",
            "STEP_COMPLETED hotel",
            "STEP_SENT car",
            "STEP_COMPLETED car",
            "STEP_SENT pay",
            "STEP_COMPLETED pay",
            "COMPLETED",
        ]

    def test_one_that_loops_does_not_grow_with_each_turn(self, bus: Harness) -> None:
        class Loop(Process[Trip]):
            process_type = "loop"

            @step(then=["turn", "pay"])
            def turn(self, state: Trip) -> SendRequest:
                return SendRequest(DOMAIN, "turn")

            @turn.reply
            def turned(self, state: Trip, reply: Reply) -> str:
                state.paid += 1
                return "turn" if state.paid < RUNS_KEPT_MAX + 5 else "pay"

            @step(then=END)
            def pay(self, state: Trip) -> SendRequest:
                return SendRequest(DOMAIN, "pay")

        sagas = Sagas(bus, Loop)
        process_id = sagas.start(Trip())
        for _ in range(RUNS_KEPT_MAX + 5):
            sagas.done("turn")
        record = sagas.get(process_id)
        assert (record.current_steps, len(record.steps)) == (["pay"], RUNS_KEPT_MAX)
        sagas.done("pay")
        assert sagas.status(process_id) == "COMPLETED"
        assert sagas.happened(process_id).count("STEP_COMPLETED turn") == RUNS_KEPT_MAX + 5

    def test_its_commands_belong_to_it(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start(Trip(to="Oslo"))
        (command,) = bus.query(domain=DOMAIN)
        assert (command.correlation_id, command.reply_to) == (process_id, "book_trip.replies")
        assert command.data == {"to": "Oslo"}
        assert command.headers == {"process_type": "book_trip"}
        assert sagas.get(process_id).steps[0].command_id == command.command_id

    def test_what_was_done_is_undone_in_reverse_one_at_a_time(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.done("book_hotel", "Grand")
        sagas.done("book_car")
        sagas.done("pay", NO)
        assert sagas.status(process_id) == "COMPENSATING"
        assert sagas.waiting() == ["cancel_car"]
        sagas.done("cancel_car")
        assert sagas.waiting() == ["cancel_hotel"]
        assert sagas.status(process_id) == "COMPENSATING"
        sagas.done("cancel_hotel")
        record = sagas.get(process_id)
        assert record.status is ProcessStatus.COMPENSATED
        assert record.error is not None
        assert (record.error.code, record.error.step) == ("NO_ROOM", "pay")
        assert sagas.happened(process_id)[-7:] == [
            "STEP_FAILED pay",
            "COMPENSATING pay",
            "COMPENSATION_SENT cancel_car",
            "COMPENSATION_COMPLETED cancel_car",
            "COMPENSATION_SENT cancel_hotel",
            "COMPENSATION_COMPLETED cancel_hotel",
            "COMPENSATED",
        ]

    def test_a_failure_before_anything_was_done_is_just_that(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.done("book_hotel", NO)
        assert sagas.status(process_id) == "FAILED"
        assert sagas.waiting() == []

    def test_a_step_may_choose_what_follows(self, bus: Harness) -> None:
        sagas = Sagas(bus, Choosy)
        plain, rich, nothing = sagas.start(), sagas.start(Trip(luxury=True)), sagas.start()
        sagas.done("look")
        sagas.done("look")
        sagas.done("look", "nothing")
        assert sagas.waiting() == ["book_room", "book_suite"]
        assert sagas.status(nothing) == "COMPLETED"
        assert sagas.get(plain).current_steps == ["room"]
        sagas.done("book_room")
        sagas.done("book_suite", NO)
        assert sagas.get(rich).current_steps == ["room"]
        assert sagas.get(rich).state["log"] == ["NO_ROOM"]

    def test_a_step_without_anything_to_do_is_skipped(self, bus: Harness) -> None:
        sagas = Sagas(bus, Choosy)
        process_id = sagas.start(Trip(paid=1))
        sagas.done("look")
        sagas.done("book_room")
        assert sagas.waiting() == ["thank"]
        assert "STEP_SKIPPED pay" in sagas.happened(process_id)

    def test_a_hook_sees_every_command_before_it_is_sent(self, bus: Harness) -> None:
        sagas = Sagas(bus, Choosy)
        sagas.start()
        (command,) = bus.query(domain=DOMAIN)
        assert (command.priority, command.headers["step"]) == (0, "look")

    def test_steps_run_at_once_and_are_joined(self, bus: Harness) -> None:
        sagas = Sagas(bus, Parallel)
        process_id = sagas.start()
        sagas.done("begin")
        assert sagas.waiting() == ["hotel", "car", "guide"]
        sagas.done("hotel")
        sagas.done("car")
        assert sagas.waiting() == ["guide"]
        sagas.done("guide")
        sagas.done("confirm")
        assert sagas.status(process_id) == "COMPLETED"

    def test_replies_of_one_process_in_one_batch_are_all_counted(self, bus: Harness) -> None:
        sagas = Sagas(bus, Parallel)
        process_id = sagas.start()
        sagas.done("begin")
        for name in ("hotel", "car", "guide"):
            sagas.end(name)
        assert sagas.route() == 3
        assert sagas.waiting() == ["confirm"]
        assert sagas.get(process_id).version == 3

    def test_what_runs_beside_a_failure_is_awaited_and_undone(self, bus: Harness) -> None:
        sagas = Sagas(bus, Parallel)
        process_id = sagas.start()
        sagas.done("begin")
        sagas.done("hotel")
        sagas.done("car", NO)
        assert sagas.status(process_id) == "COMPENSATING"
        assert sagas.waiting() == ["guide"]
        sagas.done("guide")
        assert sagas.waiting() == ["undo_guide"]
        sagas.done("undo_guide")
        sagas.done("undo_hotel")
        assert sagas.status(process_id) == "COMPENSATED"
        assert "STEP_SENT confirm" not in sagas.happened(process_id)

    def test_double_and_unknown_replies_are_recorded_and_ignored(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        command_id = sagas.done("book_hotel", "Grand")
        before = sagas.get(process_id)
        for wanted in (command_id, uuid4()):
            self.reply(bus, process_id, wanted)
        assert sagas.route() == 2
        after = sagas.get(process_id)
        assert (after.state, after.steps) == (before.state, before.steps)
        ignored = [e for e in sagas.audit(process_id) if e.event_type == "REPLY_IGNORED"]
        reasons = [event.details["reason"] for event in ignored]
        assert reasons == ["the step has ended", "no step sent this command"]

    def test_an_ended_process_accepts_nothing_more(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        command_id = sagas.done("book_hotel", NO)
        self.reply(bus, process_id, command_id)
        sagas.route()
        assert sagas.status(process_id) == "FAILED"
        assert sagas.waiting() == []
        assert sagas.audit(process_id)[-1].details["reason"] == "the process has ended"

    def test_a_reply_to_no_process_is_recorded(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        stranger = uuid4()
        self.reply(bus, stranger, uuid4())
        assert sagas.route() == 1
        assert sagas.happened(stranger) == ["REPLY_IGNORED"]
        assert bus.stats("book_trip.replies").parked == 0

    def test_an_invalid_reply_is_parked(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        bus.send("book_trip.replies", "gossip")
        smuggle(bus, "book_trip.replies", REPLY_TYPE, {"no": "reply"}, uuid4())
        sagas.route()
        assert bus.stats("book_trip.replies").parked == 2

    def reply(self, bus: Harness, process_id: Any, command_id: Any) -> None:
        data = {
            "command_id": str(command_id),
            "domain": DOMAIN,
            "command_type": "x",
            "correlation_id": str(process_id),
            "outcome": "SUCCESS",
        }
        smuggle(bus, "book_trip.replies", REPLY_TYPE, data, process_id)

    def test_a_taken_id_is_refused(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        with pytest.raises(DuplicateProcessError, match=str(process_id)):
            sagas.start(process_id=process_id)
        starts = [ProcessStart(Trip(), process_id=uuid4()), ProcessStart(Trip(), process_id)]
        with pytest.raises(DuplicateProcessError):
            bus.call(sagas.manager.start_many, starts)
        assert len(bus.call(bus.bus.list_processes)) == 1
        assert len(sagas.waiting()) == 1

    def test_one_of_many_starts_with_the_same_id_wins(self, bus: Harness) -> None:
        sagas, process_id = Sagas(bus, BookTrip), uuid4()
        results = together(6, lambda _: sagas.start(process_id=process_id))
        refused = [r for r in results if isinstance(r, DuplicateProcessError)]
        assert (results.count(process_id), len(refused)) == (1, 5)
        assert sagas.waiting() == ["book_hotel"]

    def test_it_starts_in_the_callers_transaction(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        with transaction(bus) as mine:
            process_id = bus.call(sagas.manager.within(mine.connection).start, Trip())
            mine.commit()
        with transaction(bus) as mine:
            never = bus.call(sagas.manager.within(mine.connection).start, Trip())
            mine.rollback()
        assert sagas.waiting() == ["book_hotel"]
        assert sagas.status(process_id) == "RUNNING"
        assert bus.call(bus.bus.get_process, never) is None

    def test_processes_are_listed_by_what_they_are(self, bus: Harness) -> None:
        trips, others = Sagas(bus, BookTrip), Sagas(bus, Parallel)
        first, other, second = trips.start(), others.start(), trips.start()
        everything = bus.call(bus.bus.list_processes)
        assert [record.process_id for record in everything] == [second, other, first]
        mine = bus.call(trips.manager.list_processes)
        assert [record.process_id for record in mine] == [second, first]
        trips.done("book_hotel", NO)
        failed = bus.call(bus.bus.list_processes, status="FAILED")
        assert [record.process_id for record in failed] == [first]

    def test_pages_follow_each_other(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        ids = sagas.start_many([Trip() for _ in range(5)])
        first = bus.call(bus.bus.list_processes, limit=3)
        sagas.start()
        rest = bus.call(bus.bus.list_processes, limit=3, after=first.next)
        assert [r.process_id for r in [*first, *rest]] == list(reversed(ids))
        assert rest.next is None

    def test_bad_input_is_refused(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        with pytest.raises(InvalidArgumentError, match="Unknown status"):
            bus.call(bus.bus.list_processes, status="LOST")
        with pytest.raises(InvalidArgumentError, match="limit"):
            bus.call(bus.bus.list_processes, limit=0)
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            sagas.start({"to": 7})
        with pytest.raises(PayloadError):
            sagas.start(Trip(paid=2**70))
        with pytest.raises(InvalidArgumentError, match="process_id"):
            sagas.start(process_id="nonsense")
        with pytest.raises(ConfigurationError, match="declares no process"):
            bus.manager_class(bus.bus, Trip)
        with pytest.raises(ConfigurationError, match="at least one"):
            bus.router_class(bus.bus, [])
        with pytest.raises(ConfigurationError, match="batch_size"):
            bus.router_class(bus.bus, BookTrip, batch_size=0)
        assert bus.call(bus.bus.get_process, uuid4()) is None
        assert bus.call(bus.bus.get_process_audit, uuid4()) == []
        with pytest.raises(ProcessNotFoundError):
            bus.call(bus.bus.cancel_process, uuid4())
        assert not bus.query()

    def test_a_first_step_that_cannot_decide_starts_nothing(self, bus: Harness) -> None:
        broken = Sagas(bus, Broken)
        with pytest.raises(InvalidOperationError, match="KeyError"):
            broken.start({"ok": False})
        assert len(bus.call(bus.bus.list_processes)) == 0

    def test_a_decision_that_fails_waits_for_an_operator(self, bus: Harness) -> None:
        sagas = Sagas(bus, Broken)
        process_id = sagas.start({"ok": True})
        sagas.done("first", "bad")
        assert sagas.status(process_id) == "WAITING_FOR_TROUBLESHOOTING"
        failed = sagas.audit(process_id)[-1]
        assert (failed.event_type, failed.step) == ("DECISION_FAILED", "first")
        (parked,) = bus.call(bus.troubleshooting.list_troubleshooting, "broken.replies")
        assert "bad reply" in parked.error_message
        Broken.patience = True
        try:
            bus.call(bus.bus.acting("ann").retry_process, process_id)
            assert sagas.route() == 1
        finally:
            Broken.patience = False
        assert sagas.status(process_id) == "COMPLETED"

    def test_a_parked_step_shows_and_goes_on_after_the_operator(self, bus: Harness) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.done("book_hotel", PermanentCommandError("BROKEN"))
        record = sagas.get(process_id)
        assert record.status is ProcessStatus.WAITING_FOR_TROUBLESHOOTING
        assert record.steps[0].parked
        waiting = bus.call(bus.bus.list_processes, status="WAITING_FOR_TROUBLESHOOTING")
        assert [r.process_id for r in waiting] == [process_id]
        assert len(bus.call(bus.bus.list_processes, status="RUNNING")) == 0
        bus.call(bus.bus.acting("ann").retry_process, process_id)
        assert sagas.status(process_id) == "RUNNING"
        sagas.done("book_hotel", "Grand")
        assert sagas.get(process_id).current_steps == ["car"]
        happened = sagas.happened(process_id)
        assert happened[2:5] == ["STEP_PARKED hotel", "STEP_RESUMED hotel", "STEP_COMPLETED hotel"]

    @pytest.mark.parametrize(
        ("decide", "status"), [("operator_complete", "RUNNING"), ("operator_cancel", "FAILED")]
    )
    def test_an_operator_may_end_a_parked_step(self, bus: Harness, decide: str, status: str) -> None:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        command_id = sagas.done("book_hotel", PermanentCommandError("BROKEN"))
        act = getattr(bus.troubleshooting.acting("ann"), decide)
        bus.call(act, command_id, reason="by hand")
        sagas.route()
        assert sagas.status(process_id) == status


class Broken(Process[dict[str, Any]]):
    """Cannot always decide."""

    patience = False

    @step(then=END)
    def first(self, state: dict[str, Any]) -> SendRequest:
        if not state["ok"]:
            raise KeyError("not ok")
        return SendRequest(DOMAIN, "first")

    @first.reply
    def judge(self, state: dict[str, Any], reply: Any) -> None:
        if reply.result == "bad" and not Broken.patience:
            raise RuntimeError("bad reply")
