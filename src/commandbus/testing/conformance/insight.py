"""Answers for people: why a command is not running, who is at work, what failed alike."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from commandbus.domain.breaker import CircuitBreaker
from commandbus.domain.command import SendRequest
from commandbus.domain.presence import WorkerInfo
from commandbus.domain.process_identity import ProcessIdentity
from commandbus.errors import (
    BreakerOpen,
    CommandNotFoundError,
    InvalidArgumentError,
    PermanentCommandError,
    Snooze,
    TransientCommandError,
)
from commandbus.operations.presence import MISSED_MAX, heartbeat, report_worker
from commandbus.services.presence import Presence
from commandbus.store.process_list import this_process
from commandbus.store.sessions import QUIET_SECONDS
from commandbus.testing.conformance.helpers import AT_ONCE, park, registry_of, require
from commandbus.testing.handlers import Gate
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.sagas import BookTrip
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry


def codes(bus: Harness, command_id: UUID) -> list[str]:
    return [reason.code for reason in bus.call(bus.bus.why, command_id).reasons]


class WhySuite:
    def test_no_worker_serves_the_domain(self, bus: Harness) -> None:
        assert codes(bus, bus.send()) == ["NO_WORKER"]

    def test_others_are_ahead(self, bus: Harness) -> None:
        bus.send()
        bus.send(DOMAIN, "ship", None, priority="high")
        last = bus.send()
        answer = bus.call(bus.bus.why, last)
        assert [reason.code for reason in answer.reasons] == ["NO_WORKER", "AHEAD"]
        assert "2 commands are ahead" in str(answer)

    def test_results_and_records_stand_for_their_ids(self, bus: Harness) -> None:
        sent, api = bus.send_result(DOMAIN, "ship"), bus.bus
        record = bus.get(sent.command_id)
        for given in (sent, record, sent.command_id, str(sent.command_id)):
            assert bus.call(api.why, given).command_id == str(sent.command_id)
            assert [one.event_type for one in bus.call(api.get_audit_trail, given)] == ["SENT"]
            assert bus.call(api.get_command, given) == record
            assert bus.call(api.reprioritise_many, 3, command_ids=[given], preview=True).matched == 1
            assert bus.call(bus.troubleshooting.bulk, "retry", command_ids=[given]).matched == 0
        bus.call(api.cancel, record)
        assert bus.call(api.wait, record).status == "CANCELED"

        batch = bus.call(api.create_batch, [SendRequest(DOMAIN, "ship")])
        found = bus.call(api.get_batch, batch)
        assert bus.call(api.get_batch, found) == found
        assert bus.call(api.cancel_batch, found).canceled == 1

        process = bus.call(api.chain, SendRequest(DOMAIN, "ship"))
        assert bus.call(api.why, process).command_id == str(process.process_id)

    def test_the_domain_is_paused(self, bus: Harness) -> None:
        command_id = bus.send()
        bus.pause(DOMAIN, "maintenance")
        answer = bus.call(bus.bus.why, command_id)
        assert "PAUSED" in [reason.code for reason in answer.reasons]
        assert "maintenance" in answer.summary

    def test_it_is_scheduled(self, bus: Harness) -> None:
        assert "SCHEDULED" in codes(bus, bus.send(DOMAIN, "ship", None, delay=60))

    def test_a_retry_names_the_failure(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), KeyError("x"))
        assert "KeyError" in bus.call(bus.bus.why, command_id).summary

    def test_no_live_worker_knows_the_type(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=lambda command, context: None)):
            eventually(lambda: bus.call(bus.bus.list_workers))
            command_id = bus.send(DOMAIN, "unheard-of", None, delay=60)
            assert codes(bus, command_id) == ["SCHEDULED", "NO_HANDLER"]

    def test_it_is_running_on_a_worker(self, bus: Harness) -> None:
        with Gate() as gate, bus.run_worker(registry_of(ship=gate)) as running:
            command_id = bus.send()
            gate.wait_for(1)
            answer = bus.call(bus.bus.why, command_id)
            assert answer.reasons[0].code == "RUNNING"
            assert running.worker.name in answer.summary
            gate.open()

    def test_it_is_parked_because_of_an_error(self, bus: Harness) -> None:
        answer = bus.call(bus.bus.why, park(bus))
        assert answer.reasons[0].code == "PARKED"

    def test_a_breaker_is_open(self, bus: Harness) -> None:
        breaker = CircuitBreaker("bank", threshold=1, cooldown=60)
        registry = HandlerRegistry()

        @registry.handler(DOMAIN, "ship", breaker=breaker, retry=AT_ONCE)
        def fail(command: Any, context: Any) -> None:
            raise TransientCommandError("DOWN")

        with bus.run_worker(registry, concurrency=1):
            command_id = bus.send()
            eventually(lambda: codes(bus, command_id) == ["BREAKER_OPEN"])
            assert "breaker of 'bank' is open until 20" in bus.call(bus.bus.why, command_id).summary

    def test_a_breaker_around_a_part_of_a_handler_is_open(self, bus: Harness) -> None:
        def call_the_bank(command: Any, context: Any) -> None:
            raise BreakerOpen("bank", 60)

        with bus.run_worker(registry_of(ship=call_the_bank)):
            command_id = bus.send()
            assert eventually(lambda: codes(bus, command_id) == ["BREAKER_OPEN"])

    def test_a_delay_is_no_breaker_whatever_its_text_says(self, bus: Harness) -> None:
        def put_off(command: Any, context: Any) -> None:
            raise Snooze(60, "the breaker of 'bank' is open")

        with bus.run_worker(registry_of(ship=put_off)):
            command_id = bus.send()
            assert eventually(lambda: codes(bus, command_id) == ["SCHEDULED"])
            eventually(lambda: "put off" in bus.call(bus.bus.why, command_id).summary)

    def test_a_breaker_that_was_reset_is_not_called_open(self, bus: Harness) -> None:
        registry = HandlerRegistry()

        @registry.handler(DOMAIN, "ship", breaker=CircuitBreaker("bank", threshold=1), retry=AT_ONCE)
        def fail(command: Any, context: Any) -> None:
            raise TransientCommandError("DOWN")

        with bus.run_worker(registry, concurrency=1):
            command_id = bus.send()
            eventually(lambda: bus.call(bus.bus.get_breaker, "bank"))
            eventually(lambda: codes(bus, command_id) == ["BREAKER_OPEN"])
            bus.call(bus.bus.reset_breaker, "bank")
            assert codes(bus, command_id) == ["SCHEDULED"]
            assert "the breaker of 'bank' was open" in bus.call(bus.bus.why, command_id).summary

    def test_what_is_held_back_is_not_ahead_of_others(self, bus: Harness) -> None:
        require(bus, "gates")
        for _ in range(2):
            bus.send(DOMAIN, "ship", None, group_key="g")
        assert codes(bus, bus.send()) == ["NO_WORKER"]

    def test_what_has_expired_does_not_wait_for_others(self, bus: Harness) -> None:
        bus.send()
        command_id = bus.send(expires_at=bus.now + timedelta(seconds=10))
        bus.advance(20)
        assert codes(bus, command_id) == ["NO_WORKER", "EXPIRED"]

    def test_a_worker_with_the_tags_needs_the_handler_too(self, bus: Harness) -> None:
        require(bus, "gates")
        able, tagged = registry_of(ship=lambda command, context: None), HandlerRegistry()
        tagged.register(DOMAIN, "other", lambda command, context: None)
        with (
            bus.run_worker(able, name="able"),
            bus.run_worker(tagged, name="tagged", tags=["gpu"]),
        ):
            eventually(lambda: len(bus.call(bus.bus.list_workers)) == 2)
            command_id = bus.send(DOMAIN, "ship", None, requires=["gpu"], delay=60)
            assert codes(bus, command_id) == ["SCHEDULED", "NO_HANDLER"]

    def test_each_answer_says_a_thing_once(self, bus: Harness) -> None:
        """An operator reads it aloud: no word is said twice in a row, no code repeated in its text."""
        worker, parked = bus.worker(), park(bus)
        retried, ended = bus.send(), bus.send()
        bus.call(worker.fail, bus.take(worker), KeyError("x"))
        bus.call(worker.complete, bus.take(worker))
        for command_id in (
            parked,
            retried,
            ended,
            bus.send(),
            bus.send(DOMAIN, "ship", None, delay=60),
        ):
            for reason in bus.call(bus.bus.why, command_id).reasons:
                assert reason.code not in reason.text
                words = reason.text.split()
                assert all(one != other for one, other in pairwise(words)), reason.text
                assert len(reason.text) < 200, reason.text

    def test_it_has_ended(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.complete, bus.take(worker))
        assert codes(bus, command_id) == ["ENDED"]

    def test_an_unknown_command_is_an_error(self, bus: Harness) -> None:
        with pytest.raises(CommandNotFoundError):
            bus.call(bus.bus.why, uuid4())


def check_place(info: WorkerInfo) -> None:
    """A report says where and since when its worker runs."""
    assert (info.host, info.pid) == (socket.gethostname(), os.getpid())
    assert abs((datetime.now(UTC) - info.started_at).total_seconds()) < 60


class WorkersSuite:
    def test_a_running_worker_is_listed_and_a_stopped_one_is_not(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=lambda command, context: None), concurrency=3) as running:
            (info,) = eventually(lambda: bus.call(bus.bus.list_workers))
            assert info.name == running.worker.name
            assert (info.domains, info.concurrency) == ((DOMAIN,), 3)
            assert info.command_types == ((DOMAIN, "ship"),)
            assert info.runtime == bus.runtime
            check_place(info)
        assert not bus.call(bus.bus.list_workers)

    def test_workers_come_in_pages_by_name(self, bus: Harness) -> None:
        infos = [bus.worker()._presence(bus.runtime) for _ in range(3)]
        for info in infos:
            bus.run(report_worker(bus.bus.scope, info, 0))
        first = bus.call(bus.bus.list_workers, limit=2)
        rest = bus.call(bus.bus.list_workers, after=first.next)
        assert [info.name for info in (*first, *rest)] == sorted(info.name for info in infos)
        assert (len(first), rest.next) == (2, None)

    def test_a_worker_reports_itself_again_and_again(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=lambda command, context: None)):
            (first,) = eventually(lambda: bus.call(bus.bus.list_workers))
            # Longer than a worker may be silent: only a new report lists it again.
            bus.advance(MISSED_MAX * QUIET_SECONDS + 1)
            bus.engine.hub.wake(Presence.topic, None, "test")
            (second,) = eventually(lambda: bus.call(bus.bus.list_workers))
        assert second.seen_at > first.seen_at
        assert (second.name, second.started_at) == (first.name, first.started_at)

    def test_two_reports_come_within_the_time_that_a_worker_may_be_silent(self, bus: Harness) -> None:
        scope, info = bus.bus.scope, bus.worker()._presence(bus.runtime)
        pause = bus.run(Presence(info, 30.0).work(scope))
        assert pause == heartbeat(scope, info, 30.0)
        bus.advance(2 * pause)
        assert [one.name for one in bus.call(bus.bus.list_workers)] == [info.name]
        bus.advance(pause)
        assert not bus.call(bus.bus.list_workers)

    def test_a_worker_whose_process_is_not_in_the_list_of_processes_is_gone(self, bus: Harness) -> None:
        process = this_process()
        if not process.started:
            pytest.skip("this machine has no list of processes")
        dead = msgspec.structs.replace(process, started=process.started + 1)
        info = msgspec.structs.replace(bus.worker()._presence(bus.runtime), process=dead)
        bus.run(report_worker(bus.bus.scope, info, 0))
        assert not bus.call(bus.bus.list_workers)
        assert codes(bus, bus.send()) == ["NO_WORKER"]

    def test_a_worker_of_another_machine_is_there_until_its_reports_are_missing(
        self, bus: Harness
    ) -> None:
        far = ProcessIdentity(1, 1, "another boot", "another namespace", "another host")
        info = msgspec.structs.replace(bus.worker()._presence(bus.runtime), process=far)
        again = heartbeat(bus.bus.scope, info, 30.0)
        if not bus.capabilities.one_machine:
            assert again * MISSED_MAX <= 30.0 + 5.0, "gone 5 s after the end of its lease at the latest"
        bus.run(report_worker(bus.bus.scope, info, 0, again))
        assert len(bus.call(bus.bus.list_workers)) == 1
        bus.advance(again * MISSED_MAX)
        assert not bus.call(bus.bus.list_workers)

    def test_a_running_router_is_listed_and_answers_why_a_reply_waits(self, bus: Harness) -> None:
        with bus.run_router(BookTrip, concurrency=2) as router:
            (info,) = eventually(lambda: bus.call(bus.bus.list_workers))
            assert (info.name, info.runtime) == (router.name, bus.runtime)
            check_place(info)
            assert (info.domains, info.processes) == ((BookTrip.reply_to,), (BookTrip.process_type,))
            assert (info.concurrency, info.command_types) == (2, ())
            reply = bus.send(BookTrip.reply_to, "reply", None, delay=60)
            assert codes(bus, reply) == ["SCHEDULED"]
        assert not bus.call(bus.bus.list_workers)


class RedriveSuite:
    def bulk(self, bus: Harness, action: str, **options: Any) -> Any:
        return bus.call(bus.troubleshooting.bulk, action, **options)

    def test_failures_of_one_kind_are_one_group(self, bus: Harness) -> None:
        park(bus)
        newest = park(bus)
        park(bus, command_type="bill")
        groups = bus.call(bus.troubleshooting.group_failures)
        assert [(g.command_type, g.count) for g in groups] == [("ship", 2), ("bill", 1)]
        assert groups[0].example == newest

    def test_a_group_survives_a_moved_line_and_another_folder(self, bus: Harness) -> None:
        for place in ("/srv/one/shop.py", "/opt/two/shop.py"):
            module: dict[str, Any] = {"__name__": "shop", "broken": PermanentCommandError("BROKEN")}
            lines = "\n" * len(place) + "def ship():\n    raise broken\n"
            (ship,) = (c for c in compile(lines, place, "exec").co_consts if isinstance(c, CodeType))
            worker, command_id = bus.worker(), bus.send()
            with pytest.raises(PermanentCommandError) as raised:
                FunctionType(ship, module)()
            bus.call(worker.fail, bus.take(worker), raised.value)
            error = bus.get(command_id).error
            assert error is not None
            assert place in str(error.frame)
        (group,) = bus.call(bus.troubleshooting.group_failures)
        assert (group.count, group.error_code) == (2, "BROKEN")

    def test_a_preview_changes_nothing(self, bus: Harness) -> None:
        for command_type in ("ship", "ship", "bill"):
            park(bus, command_type=command_type)
        group = bus.call(bus.troubleshooting.group_failures)[0].fingerprint
        for matched, conditions in (
            (3, {"domain": DOMAIN}),
            (2, {"group": group}),
            (1, {"group": group, "limit": 1}),
            (0, {"group": group, "command_type": "bill"}),
            (0, {"group": group, "error_code": "ANOTHER"}),
            (2, {"command_type": "ship"}),
            (2, {"domain": DOMAIN, "limit": 2}),
            (3, {"error_code": bus.query()[0].error_code}),
            (0, {"error_code": "ANOTHER"}),
            (0, {"domain": "nowhere"}),
        ):
            report = self.bulk(bus, "retry", preview=True, **conditions)
            assert (report.matched, report.done) == (matched, 0), conditions
        assert bus.call(bus.troubleshooting.count) == 3

    @pytest.mark.parametrize("preview", [True, False])
    @pytest.mark.parametrize("name", ["domain", "command_type"])
    def test_a_name_that_no_database_keeps_is_refused(
        self, bus: Harness, name: str, preview: bool
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=name):
            self.bulk(bus, "retry", preview=preview, **{name: "a\0"})
        with pytest.raises(InvalidArgumentError, match=name):
            bus.call(bus.troubleshooting.count, **{name: "a\0"})

    def test_a_group_is_retried_and_the_rest_is_left(self, bus: Harness) -> None:
        for command_type in ("ship", "ship", "bill"):
            park(bus, command_type=command_type)
        largest = bus.call(bus.troubleshooting.group_failures)[0]
        report = self.bulk(bus.acting("ann"), "retry", group=largest.fingerprint, reason="mended")
        assert (report.done, report.refused) == (2, 0)
        assert bus.call(bus.troubleshooting.count) == 1

    def test_named_commands_are_canceled_with_operator_and_reason(self, bus: Harness) -> None:
        command_id = park(bus)
        park(bus)
        self.bulk(bus.acting("ann"), "cancel", command_ids=[command_id], reason="old")
        event = bus.trail(command_id)[-1]
        assert (event.details["actor"], event.details["reason"]) == ("ann", "old")
        assert bus.call(bus.troubleshooting.count) == 1

    def test_progress_is_reported_and_can_stop(self, bus: Harness) -> None:
        for _ in range(3):
            park(bus)
        steps_seen: list[tuple[int, int]] = []

        def progress(done: int, matched: int) -> bool:
            steps_seen.append((done, matched))
            return done < 2

        report = self.bulk(bus, "complete", domain=DOMAIN, result=1, progress=progress)
        assert steps_seen == [(1, 3), (2, 3)]
        assert (report.done, report.stopped) == (2, True)

    def test_the_rest_is_retried_when_the_canary_completes(self, bus: Harness) -> None:
        for _ in range(5):
            park(bus)
        with bus.run_worker(registry_of(ship=lambda command, context: None)):
            report = self.bulk(bus, "retry", domain=DOMAIN, canary=[1, 2], patience=30)
        assert (report.done, report.stopped, report.failed) == (5, False, 0)

    def test_a_canary_that_fails_leaves_the_rest_parked(self, bus: Harness) -> None:
        for _ in range(5):
            park(bus)

        def fail(command: Any, context: Any) -> None:
            raise PermanentCommandError("STILL_BROKEN")

        with bus.run_worker(registry_of(ship=fail)):
            report = self.bulk(bus, "retry", domain=DOMAIN, canary=[1, 2], patience=30)
        assert (report.matched, report.done, report.stopped, report.failed) == (5, 1, True, 1)
        assert bus.call(bus.troubleshooting.count) == 5

    def test_a_canary_counts_and_names_all_that_failed(self, bus: Harness) -> None:
        ids = [park(bus) for _ in range(4)]
        incurable = {ids[0], ids[2]}
        bus.advance(1)

        def ship(command: Any, context: Any) -> None:
            if command.command_id in incurable:
                raise PermanentCommandError("STILL_BROKEN")

        with bus.run_worker(registry_of(ship=ship)):
            report = self.bulk(bus, "retry", domain=DOMAIN, canary=3, patience=30)
            assert (report.done, report.failed, set(report.failed_ids)) == (3, 2, incurable)
            again = self.bulk(bus, "retry", domain=DOMAIN, canary=1, limit=1, patience=30)
        assert (again.done, again.failed) == (1, 0), "it began with one of the last canary"

    def test_a_canary_that_no_worker_claims_is_not_waited_for_for_ever(self, bus: Harness) -> None:
        for _ in range(2):
            park(bus)
        report = self.bulk(bus, "retry", domain=DOMAIN, canary=[1], patience=0)
        assert (report.done, report.failed) == (1, 1)

    @pytest.mark.parametrize(
        ("action", "options", "named"),
        [
            ("cancel", {"domain": DOMAIN, "reason": "old", "canary": [1]}, "canary is for retries"),
            ("retry", {"domain": DOMAIN, "canary": [0]}, "canary"),
            ("retry", {"domain": DOMAIN, "canary": "one"}, "canary"),
            ("retry", {}, "Say which"),
            ("cancel", {"domain": DOMAIN}, "reason"),
            ("burn", {"domain": DOMAIN}, "burn"),
        ],
    )
    def test_an_unclear_request_is_refused(
        self, bus: Harness, action: str, options: dict[str, Any], named: str
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=named):
            self.bulk(bus, action, **options)
