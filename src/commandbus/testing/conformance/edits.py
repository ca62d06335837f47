"""Edits of operators: reschedule and reprioritise what waits, resend what ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.schedule import Schedule
from commandbus.errors import (
    BusinessRuleException,
    CommandNotFoundError,
    InvalidArgumentError,
    InvalidOperationError,
    TransientCommandError,
)
from commandbus.testing.conformance.helpers import about, complete, park, registry_of, require
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness


def call(bus: Harness, method: str, *args: Any, **kwargs: Any) -> Any:
    return bus.call(getattr(bus.bus, method), *args, **kwargs)


def taken(bus: Harness, worker: Any = None) -> Any:
    """The id of the command that is claimed next, or None."""
    received = bus.receive(worker or bus.worker())
    return received[0].command.command_id if received else None


class RescheduleSuite:
    def test_a_command_is_due_later(self, bus: Harness) -> None:
        command_id = bus.send()
        call(bus, "reschedule", command_id, delay=60)
        assert bus.seconds_until(bus.get(command_id).due_at) == about(60)
        assert taken(bus) is None
        bus.advance(61)
        assert taken(bus) == command_id

    def test_a_command_is_due_now(self, bus: Harness) -> None:
        command_id = bus.send(delay=3600)
        call(bus, "reschedule", command_id, delay=0)
        assert taken(bus) == command_id

    def test_a_command_is_due_at_a_moment(self, bus: Harness) -> None:
        command_id, moment = bus.send(), bus.now + timedelta(minutes=5)
        call(bus, "reschedule", command_id, due_at=moment)
        assert abs(bus.get(command_id).due_at - moment) < timedelta(seconds=1)
        assert taken(bus) is None

    def test_what_was_due_stays_in_order_when_it_is_due_now_again(self, bus: Harness) -> None:
        first, second = bus.send(), bus.send()
        call(bus, "reschedule", first, delay=0)
        call(bus, "reschedule", first, delay=0)
        worker = bus.worker()
        assert [taken(bus, worker), taken(bus, worker), taken(bus, worker)] == [first, second, None]

    def test_attempts_are_kept(self, bus: Harness) -> None:
        command_id, worker = bus.send(max_attempts=5), bus.worker()
        bus.call(worker.fail, bus.take(worker), TransientCommandError("AGAIN"))
        assert bus.get(command_id).status is CommandStatus.PENDING
        call(bus, "reschedule", command_id, delay=0)
        received = bus.take(worker)
        assert (received.command.command_id, received.attempt) == (command_id, 2)

    def test_a_waiting_worker_wakes_for_it(self, bus: Harness) -> None:
        recorder, command_id = Recorder(), bus.send(delay=3600)
        with bus.run_worker(registry_of(ship=recorder)) as running:
            running.wait_until_idle()
            call(bus, "reschedule", command_id, delay=0)
            recorder.wait_for(1)
            assert bus.wait(command_id).status is CommandStatus.COMPLETED

    def test_a_later_time_lets_the_next_of_the_group_go_first(self, bus: Harness) -> None:
        require(bus, "gates")
        first, second = bus.send(group_key="g"), bus.send(group_key="g")
        call(bus, "reschedule", first, delay=10)
        worker = bus.worker()
        received = bus.take(worker)
        assert received.command.command_id == second
        assert taken(bus, worker) is None
        bus.advance(11)
        assert taken(bus, worker) is None, "the group is busy"
        bus.call(worker.complete, received)
        assert taken(bus, worker) == first

    def test_a_held_member_of_a_group_keeps_its_place_when_it_is_due_now(self, bus: Harness) -> None:
        require(bus, "gates")
        ids = [bus.send(group_key="g") for _ in range(3)]
        call(bus, "reschedule", ids[1], delay=0)
        seen = []
        for _ in ids:
            worker = bus.worker()
            received = bus.take(worker)
            seen.append(received.command.command_id)
            bus.call(worker.complete, received)
        assert seen == ids

    def test_it_does_not_pass_a_limit(self, bus: Harness) -> None:
        require(bus, "gates")
        call(bus, "set_limit", DOMAIN, concurrency=1)
        first, later = bus.send(), bus.send(delay=3600)
        worker = bus.worker()
        received = bus.take(worker)
        call(bus, "reschedule", later, delay=0)
        assert taken(bus, worker) is None
        bus.call(worker.complete, received)
        assert received.command.command_id == first
        assert taken(bus, worker) == later

    def test_it_keeps_its_unique_key_and_its_batch(self, bus: Harness) -> None:
        key = bus.send(unique_key="k")
        call(bus, "reschedule", key, delay=60)
        assert bus.send_result(DOMAIN, "ship", unique_key="k").command_id == key
        made = call(bus, "create_batch", [SendRequest(DOMAIN, "ship")])
        (member,) = bus.query(batch_id=made.batch_id)
        call(bus, "reschedule", member.command_id, delay=60)
        call(bus, "reprioritise", member.command_id, "high")
        bus.advance(61)
        worker = bus.worker()
        received = bus.take(worker)
        assert received.command.command_id == member.command_id
        bus.call(worker.complete, received)
        assert call(bus, "get_batch", made.batch_id).completed == 1

    def test_a_schedule_goes_on_beside_it(self, bus: Harness) -> None:
        schedule = Schedule(name="hourly", domain=DOMAIN, command_type="ship", every=3600.0)
        planned = call(bus, "put_schedule", schedule).next_run
        call(bus, "reschedule", call(bus, "trigger_schedule", "hourly"), delay=60)
        assert call(bus, "get_schedule", "hourly").next_run == planned

    def test_it_cannot_be_due_after_it_has_expired(self, bus: Harness) -> None:
        command_id = bus.send(expires_at=bus.now + timedelta(minutes=5))
        with pytest.raises(InvalidOperationError, match="expires"):
            call(bus, "reschedule", command_id, delay=600)
        call(bus, "reschedule", command_id, delay=60)

    def test_only_what_waits_is_edited(self, bus: Harness) -> None:
        ended, parked, running = complete(bus), park(bus), bus.send()
        bus.take(bus.worker())
        for command_id, words in ((ended, "COMPLETED"), (parked, "parked"), (running, "runs")):
            with pytest.raises(InvalidOperationError, match=words):
                call(bus, "reschedule", command_id, delay=1)
            with pytest.raises(InvalidOperationError, match=words):
                call(bus, "reprioritise", command_id, "high")
        with pytest.raises(CommandNotFoundError):
            call(bus, "reschedule", uuid4(), delay=1)

    @pytest.mark.parametrize("wrong", [{}, {"delay": 1, "due_at": 2}, {"delay": -1}, {"delay": "x"}])
    def test_an_unclear_time_is_refused(self, bus: Harness, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError):
            call(bus, "reschedule", bus.send(), **wrong)

    def test_who_did_it_and_why_is_in_the_trail_and_linked(self, bus: Harness) -> None:
        command_id = bus.send(delay=60)
        call(bus.acting("ada"), "reschedule", command_id, delay=5, reason="the bank is back")
        call(bus.acting("ada"), "reprioritise", command_id, "high", reason="urgent")
        details = [event.details for event in bus.trail(command_id)[-2:]]
        assert [(d["actor"], d["reason"]) for d in details] == [
            ("ada", "the bank is back"),
            ("ada", "urgent"),
        ]
        assert (details[1]["priority_before"], details[1]["priority"]) == (5, 0)
        report = call(bus, "verify_audit")
        assert (report.links, report.problems) == (2, [])


class ReprioritiseSuite:
    def test_a_command_runs_before_others(self, bus: Harness) -> None:
        first, second = bus.send(), bus.send()
        call(bus, "reprioritise", second, "high")
        assert bus.get(second).priority == 0
        worker = bus.worker()
        assert [taken(bus, worker), taken(bus, worker)] == [second, first]

    def test_a_scheduled_command_is_due_as_before_and_then_runs_first(self, bus: Harness) -> None:
        later = bus.send(delay=60)
        call(bus, "reprioritise", later, 1)
        assert bus.seconds_until(bus.get(later).due_at) == about(60)
        assert taken(bus) is None
        bus.advance(61)
        bus.send()
        assert taken(bus) == later

    def test_a_retry_keeps_the_new_priority(self, bus: Harness) -> None:
        command_id, worker = bus.send(max_attempts=5), bus.worker()
        call(bus, "reprioritise", command_id, "high")
        bus.call(worker.fail, bus.take(worker), TransientCommandError("AGAIN"))
        bus.send()
        bus.advance(60)
        assert taken(bus, worker) == command_id

    def test_a_member_of_a_group_overtakes_the_others_of_it(self, bus: Harness) -> None:
        require(bus, "gates")
        ids = [bus.send(group_key="g") for _ in range(3)]
        running = bus.worker()
        received = bus.take(running)
        call(bus, "reprioritise", ids[2], "high")
        bus.call(running.complete, received)
        assert (received.command.command_id, taken(bus)) == (ids[0], ids[2])

    def test_the_priority_that_it_has_changes_nothing(self, bus: Harness) -> None:
        command_id = bus.send()
        call(bus, "reprioritise", command_id, "normal")
        assert bus.kinds(command_id) == ["SENT"]

    def test_an_unknown_priority_is_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError):
            call(bus, "reprioritise", bus.send(), "urgent")


class ManySuite:
    def test_a_preview_counts_and_shows_and_changes_nothing(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(7)]
        bus.send(command_type="bill")
        report = call(bus, "reschedule_many", delay=60, command_type="ship", preview=True)
        assert (report.matched, report.done) == (7, 0)
        assert [one.command_id for one in report.examples] == ids[:1:-1]
        assert taken(bus) == ids[0]

    def test_those_that_match_are_moved_and_the_others_are_not(self, bus: Harness) -> None:
        for _ in range(3):
            bus.send()
        other = bus.send(command_type="bill")
        report = call(
            bus.acting("ada"), "reschedule_many", delay=60, command_type="ship", reason="wait"
        )
        assert (report.matched, report.done, report.refused) == (3, 3, 0)
        worker = bus.worker()
        assert [taken(bus, worker), taken(bus, worker)] == [other, None]
        assert call(bus, "verify_audit").links == 3

    def test_named_ones_get_another_priority_and_progress_may_stop_it(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(3)]
        report = call(bus, "reprioritise_many", "high", command_ids=ids[1:])
        assert report.done == 2
        assert [bus.get(one).priority for one in ids] == [5, 0, 0]
        stopped = call(
            bus, "reprioritise_many", "low", domain=DOMAIN, progress=lambda done, matched: False
        )
        assert (stopped.done, stopped.stopped) == (1, True)

    def test_named_ones_must_meet_the_conditions_too(self, bus: Harness) -> None:
        ship, bill = complete(bus, data={"n": 1}), complete(bus, command_type="bill")
        waiting = bus.send()
        chosen = {"command_ids": [ship, bill, waiting, uuid4()], "preview": True}
        report = call(bus, "resend_many", "COMPLETED", **chosen)
        assert {one.command_id for one in report.examples} == {ship, bill}
        report = call(bus, "resend_many", "COMPLETED", **chosen, command_type="bill")
        assert [one.command_id for one in report.examples] == [bill]
        report = call(bus, "resend_many", "COMPLETED", **chosen, data={"n": "1"}, limit=1)
        assert [one.command_id for one in report.examples] == [ship]

    def test_no_selection_is_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="Say which"):
            call(bus, "reschedule_many", delay=1)
        with pytest.raises(InvalidArgumentError, match="ended"):
            call(bus, "resend_many", "PENDING", domain=DOMAIN)

    def test_many_that_ended_are_sent_again(self, bus: Harness) -> None:
        for n in range(3):
            complete(bus, data={"n": n})
        report = call(bus, "resend_many", "COMPLETED", domain=DOMAIN, limit=2)
        assert (report.matched, report.done) == (2, 2)
        assert bus.stats().ready == 2


class ResendSuite:
    def test_an_ended_command_is_sent_again_as_it_was(self, bus: Harness) -> None:
        command_id = complete(
            bus, data={"n": 1}, priority="high", tags=["a"], headers={"h": 1}, unique_key="k"
        )
        before = bus.get(command_id)
        sent = call(bus.acting("ada"), "resend", command_id, reason="lost by the bank")
        assert not sent.duplicate
        new = bus.get(sent.command_id)
        assert (new.data, new.priority, new.tags, new.headers) == ({"n": 1}, 0, ("a",), {"h": 1})
        assert (new.causation_id, new.correlation_id) == (command_id, before.correlation_id)
        assert (new.status, new.unique_key) == (CommandStatus.PENDING, "k")
        assert bus.get(command_id) == before, "the ended one stays as it was"
        event = bus.trail(command_id)[-1]
        assert event.event_type == "OPERATOR_RESEND"
        assert event.details["command_id"] == str(sent.command_id)
        assert (event.details["actor"], event.details["reason"]) == ("ada", "lost by the bank")
        assert call(bus, "verify_audit").problems == []

    def test_failed_and_canceled_ones_too_with_other_data_and_options(self, bus: Harness) -> None:
        failed, worker = bus.send(data={"n": 1}), bus.worker()
        bus.call(worker.fail, bus.take(worker), BusinessRuleException("NO"))
        canceled = bus.send(data={"n": 2})
        bus.cancel(canceled)
        for command_id in (failed, canceled):
            sent = call(bus, "resend", command_id, {"n": 3}, priority="low", delay=60)
            new = bus.get(sent.command_id)
            assert (new.data, new.priority) == ({"n": 3}, 10)
            assert bus.seconds_until(new.due_at) == about(60)
            assert bus.trail(command_id)[-1].details["edited"]

    def test_what_has_not_ended_is_not_sent_again(self, bus: Harness) -> None:
        waiting = bus.send(delay=60)
        parked, running = park(bus), bus.send()
        bus.take(bus.worker())
        for command_id, words in (
            (waiting, "reschedule"),
            (parked, "operator_retry"),
            (running, "runs"),
        ):
            with pytest.raises(InvalidOperationError, match=words):
                call(bus, "resend", command_id)

    def test_a_unique_key_that_another_holds_sends_nothing(self, bus: Harness) -> None:
        ended = complete(bus, unique_key="k")
        holder = bus.send(unique_key="k")
        sent = call(bus, "resend", ended)
        assert (sent.duplicate, sent.command_id) == (True, holder)
        assert "OPERATOR_RESEND" not in bus.kinds(ended)

    def test_it_is_no_member_of_the_batch(self, bus: Harness) -> None:
        made = call(bus, "create_batch", [SendRequest(DOMAIN, "ship")])
        worker = bus.worker()
        received = bus.take(worker)
        bus.call(worker.complete, received)
        sent = call(bus, "resend", received.command.command_id)
        assert bus.get(sent.command_id).batch_id is None
        assert call(bus, "get_batch", made.batch_id).total == 1

    def test_a_group_and_an_expiry(self, bus: Harness) -> None:
        require(bus, "gates")
        ended = complete(bus, group_key="g", expires_at=bus.now + timedelta(minutes=1))
        bus.advance(120)
        new = bus.get(call(bus, "resend", ended).command_id)
        assert (new.group_key, new.expires_at) == ("g", None)

    def test_erased_data_must_be_given_again(self, bus: Harness) -> None:
        command_id = complete(bus, data={"account": 42})
        call(bus, "erase", data={"account": "42"}, reason="asked")
        with pytest.raises(InvalidOperationError, match="erased"):
            call(bus, "resend", command_id)
        call(bus, "resend", command_id, {"account": 43})
