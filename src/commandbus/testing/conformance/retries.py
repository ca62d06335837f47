"""Retries: the error matrix, row by row, and whose limit counts."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.domain.command import Command
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.domain.retry import RetryPolicy, exponential
from commandbus.errors import (
    BusinessRuleException,
    InvalidArgumentError,
    PermanentCommandError,
    RetryAfter,
    Snooze,
    TransientCommandError,
)
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import AT_ONCE, about, registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.worker.handlers import HandlerRegistry


class UnreadableError(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def failing_with(error: BaseException, *, retry: RetryPolicy | None = None) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handler(DOMAIN, "ship", retry=retry)
    def ship(command: Command[Any], context: Any) -> None:
        raise error

    return registry


class RetriesSuite:
    def test_a_transient_error_is_retried_until_it_works(self, bus: Harness) -> None:
        busy = TransientCommandError("BUSY", "try later")
        handler = Recorder(busy, busy, result="done")
        command_id = bus.send()
        with bus.run_worker(registry_of(ship=handler), retry_policy=AT_ONCE):
            record = bus.wait(command_id)
        assert (record.status, record.result) == (CommandStatus.COMPLETED, "done")
        assert [context.attempt for context in handler.contexts] == [1, 2, 3]
        assert record.attempts == 3

    def test_exhausted_attempts_park_the_command(self, bus: Harness) -> None:
        command_id = bus.send()
        error = TransientCommandError("BUSY", "try later", {"queue": 3})
        with bus.run_worker(failing_with(error), retry_policy=AT_ONCE):
            record = bus.wait(command_id)
        assert (record.status, record.reason, record.attempts) == (PARKED, "EXHAUSTED", 3)
        assert (record.error_code, record.error_message) == ("BUSY", "try later")
        assert record.error is not None
        assert record.error.details == {"queue": 3}

    def test_a_permanent_error_parks_at_once(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=5)
        error = PermanentCommandError("NO_SUCH_ARTICLE", "article 7", {"article": 7})
        with bus.run_worker(failing_with(error)):
            record = bus.wait(command_id)
        assert (record.status, record.reason, record.attempts) == (PARKED, "PERMANENT", 1)
        assert (record.error_code, record.error_message) == ("NO_SUCH_ARTICLE", "article 7")

    def test_a_business_rule_ends_failed_without_an_operator(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=5)
        with bus.run_worker(failing_with(BusinessRuleException("SOLD_OUT", "none left", {"n": 0}))):
            record = bus.wait(command_id)
        assert (record.status, record.attempts) == (CommandStatus.FAILED, 1)
        assert (record.error_code, record.error_message) == ("SOLD_OUT", "none left")
        assert record.error is not None
        assert (record.error.kind, record.error.details) == ("BUSINESS_RULE", {"n": 0})
        assert bus.stats().parked == 0

    def test_any_other_exception_is_transient_with_the_name_of_its_class(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=2)
        with bus.run_worker(failing_with(ZeroDivisionError("n / 0")), retry_policy=AT_ONCE):
            record = bus.wait(command_id)
        assert (record.status, record.reason, record.attempts) == (PARKED, "EXHAUSTED", 2)
        assert (record.error_code, record.error_message) == ("ZeroDivisionError", "n / 0")
        assert record.error is not None
        assert record.error.traceback is not None
        first_frame = record.error.traceback.splitlines()[1]
        assert first_frame.endswith("in ship"), "frames of the worker must be left out"

    def test_an_exception_without_text_is_recorded(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=1)
        with bus.run_worker(failing_with(UnreadableError())):
            record = bus.wait(command_id)
        assert record.error_code == "UnreadableError"
        assert "cannot be read" in str(record.error_message)

    def test_an_exit_in_a_handler_ends_its_command_not_its_worker(self, bus: Harness) -> None:
        first = bus.send(max_attempts=1)
        handler = Recorder(SystemExit(3))
        with bus.run_worker(registry_of(ship=handler)):
            assert bus.wait(first).error_code == "SystemExit"
            assert bus.wait(bus.send()).status is CommandStatus.COMPLETED

    def test_hostile_error_texts_are_kept_in_a_form_that_fits(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=1)
        with bus.run_worker(failing_with(ValueError("\0 \ud800 " + "x" * 100_000))):
            record = bus.wait(command_id)
        assert record.error_message is not None
        assert record.error_message.startswith("\\0 \\ud800 x")
        assert len(record.error_message) < 3_000

    def test_details_that_are_not_json_do_not_hide_the_error(self, bus: Harness) -> None:
        command_id = bus.send()
        with bus.run_worker(failing_with(PermanentCommandError("BAD", "x", {"n": float("nan")}))):
            record = bus.wait(command_id)
        assert record.error is not None
        assert record.error.code == "BAD"
        assert "refused" in record.error.details

    def test_a_retry_waits_for_its_backoff(self, bus: Harness) -> None:
        policy = RetryPolicy(max_attempts=5, backoff_schedule=[10, 60, 300])
        command_id, worker = bus.send(), bus.worker(retry_policy=policy)
        waits = []
        for wait in (10, 60, 300, 300):
            bus.call(worker.fail, bus.take(worker), "busy")
            waits.append(bus.seconds_until(bus.get(command_id).due_at))
            bus.advance(wait - 5)
            assert bus.receive(worker) == [], f"came back before {wait} s"
            bus.advance(6)
        assert waits == [about(10), about(60), about(300), about(300)]
        assert bus.take(worker).attempt == 5

    def test_a_backoff_may_grow_exponentially(self, bus: Harness) -> None:
        policy = RetryPolicy(max_attempts=9, backoff_schedule=exponential(100, factor=2, cap=350))
        command_id, worker = bus.send(), bus.worker(retry_policy=policy)
        waits = []
        for _ in range(3):
            bus.call(worker.fail, bus.take(worker), "busy")
            waits.append(bus.seconds_until(bus.get(command_id).due_at))
            bus.advance(400)
        assert waits == [about(100), about(200), about(350)]

    def test_a_retried_command_keeps_its_place_before_later_ones(self, bus: Harness) -> None:
        first, _ = bus.send(), bus.send()
        worker = bus.worker(retry_policy=AT_ONCE)
        bus.call(worker.fail, bus.take(worker), "busy")
        assert bus.take(worker).command.command_id == first

    def test_the_commands_own_limit_beats_the_handlers(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=2)
        registry = failing_with(ValueError("x"), retry=RetryPolicy(4, [0]))
        with bus.run_worker(registry, retry_policy=RetryPolicy(5, [0])):
            assert bus.wait(command_id).attempts == 2

    def test_the_handlers_limit_beats_the_workers(self, bus: Harness) -> None:
        command_id = bus.send()
        registry = failing_with(ValueError("x"), retry=RetryPolicy(4, [0]))
        with bus.run_worker(registry, retry_policy=RetryPolicy(2, [0])):
            assert bus.wait(command_id).attempts == 4

    def test_the_workers_limit_beats_the_bus(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_attempts=5)
        command_id = bus.send()
        with bus.run_worker(failing_with(ValueError("x")), retry_policy=RetryPolicy(2, [0])):
            assert bus.wait(command_id).attempts == 2

    def test_the_bus_limit_counts_where_no_other_is_given(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_attempts=1)
        command_id = bus.send()
        with bus.run_worker(failing_with(ValueError("x"))):
            record = bus.wait(command_id)
        assert (record.attempts, record.reason) == (1, "EXHAUSTED")

    def test_a_received_command_says_which_limit_counts(self, bus: Harness) -> None:
        bus.send(max_attempts=2)
        bus.send()
        worker = bus.worker(retry_policy=RetryPolicy(max_attempts=6))
        assert [taken.max_attempts for taken in bus.receive(worker, 2)] == [2, 6]

    def test_the_handlers_backoff_beats_the_workers(self, bus: Harness) -> None:
        registry = failing_with(ValueError("x"), retry=RetryPolicy(3, [100]))
        command_id, worker = bus.send(), bus.worker(DOMAIN, registry, retry_policy=AT_ONCE)
        bus.call(worker.fail, bus.take(worker), ValueError("x"))
        assert bus.seconds_until(bus.get(command_id).due_at) == about(100)

    def test_a_snooze_comes_back_later_without_using_an_attempt(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=1)
        handler = Recorder(Snooze(60, "not open yet"), result="done")
        with bus.run_worker(registry_of(ship=handler)) as running:
            handler.wait_for(1)
            running.wait_until_idle()
            record = bus.get(command_id)
            assert (record.status, record.attempts) == (CommandStatus.PENDING, 0)
            assert bus.seconds_until(record.due_at) == about(60)
            bus.advance(61)
            assert bus.wait(command_id).result == "done"
        assert [context.attempt for context in handler.contexts] == [1, 1]

    def test_a_handler_may_snooze_any_number_of_times(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=1)
        handler = Recorder(*[Snooze(0) for _ in range(8)])
        with bus.run_worker(registry_of(ship=handler)):
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
        assert len(handler.commands) == 9

    def test_retry_after_overrides_the_backoff_once(self, bus: Harness) -> None:
        command_id = bus.send()
        worker = bus.worker(retry_policy=RetryPolicy(5, [10]))
        bus.call(worker.fail, bus.take(worker), RetryAfter(500))
        record = bus.get(command_id)
        assert bus.seconds_until(record.due_at) == about(500)
        assert (record.attempts, record.error_code) == (1, "RETRY_AFTER")
        bus.advance(501)
        bus.call(worker.fail, bus.take(worker), "busy")
        assert bus.seconds_until(bus.get(command_id).due_at) == about(10)

    def test_retry_after_uses_up_attempts(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=2)
        with bus.run_worker(failing_with(RetryAfter(0, "RATE_LIMIT"))):
            record = bus.wait(command_id)
        assert (record.status, record.reason) == (PARKED, "EXHAUSTED")
        assert (record.attempts, record.error_code) == (2, "RATE_LIMIT")

    def test_a_retry_may_be_taken_by_another_worker(self, bus: Harness) -> None:
        command_id, one = bus.send(), bus.worker(name="one", retry_policy=AT_ONCE)
        bus.call(one.fail, bus.take(one), "busy")
        other = bus.worker(name="other")
        taken = bus.take(other)
        assert taken.attempt == 2
        bus.call(other.complete, taken)
        assert bus.get(command_id).worker == other.name

    def test_a_completed_retry_keeps_its_earlier_error_in_the_trail(self, bus: Harness) -> None:
        command_id = bus.send()
        handler = Recorder(ValueError("first"), KeyError("second"))
        with bus.run_worker(registry_of(ship=handler), retry_policy=AT_ONCE):
            bus.wait(command_id)
        codes = [
            event.details["error"]["code"] if isinstance(event.details["error"], dict)
            else event.details["error"].code
            for event in bus.trail(command_id)
            if event.event_type == "FAILED"
        ]  # fmt: skip
        assert codes == ["ValueError", "KeyError"]

    @pytest.mark.parametrize("kind", ["def", "async def"])
    def test_the_last_exceptions_are_kept_for_a_look(self, bus: Harness, kind: str) -> None:
        error = ValueError("x")

        async def asynchronous(command: Command[Any], context: Any) -> None:
            raise error

        command_id = bus.send(max_attempts=2)
        function = asynchronous if kind == "async def" else Recorder(error, error)
        registry = registry_of(ship=function)
        with bus.run_worker(registry, retry_policy=AT_ONCE) as running:
            bus.wait(command_id)
        caught = running.worker.last_exceptions
        assert [(one.attempt, one.type, one.error) for one in caught] == [
            (1, "ValueError", "x"),
            (2, "ValueError", "x"),
        ]
        assert caught[0].command_id == str(command_id)
        assert caught[0].exception is error

    def test_a_command_brings_its_own_schedule(self, bus: Harness) -> None:
        """Before that of its handler and of the worker; `max_attempts` counts more than its own."""
        policy = RetryPolicy(max_attempts=5, backoff_schedule=exponential(7, factor=3))
        command_id = bus.send(DOMAIN, "ship", None, retry=policy)
        registry = HandlerRegistry()
        registry.register(DOMAIN, "ship", lambda command, context: None, retry=AT_ONCE)
        worker = bus.worker(DOMAIN, registry, retry_policy=AT_ONCE)
        assert bus.get(command_id).max_attempts == 5
        for wait in (7, 21):
            bus.call(worker.fail, bus.take(worker), "busy")
            assert bus.seconds_until(bus.get(command_id).due_at) == about(wait)
            bus.advance(wait + 1)
        other = bus.send(DOMAIN, "ship", None, retry=policy, max_attempts=2)
        assert bus.get(other).max_attempts == 2

    def test_a_schedule_that_is_none_is_not_used(self, bus: Harness) -> None:
        """Other programs may write the header; the handler's policy is as good as any."""
        command_id = bus.send(DOMAIN, "ship", None, headers={"commandbus-retry": {"often": True}})
        worker = bus.worker(retry_policy=RetryPolicy(backoff_schedule=[70]))
        bus.call(worker.fail, bus.take(worker), "busy")
        assert bus.seconds_until(bus.get(command_id).due_at) == about(70)

    def test_only_a_policy_is_one(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="retry must be a RetryPolicy"):
            bus.send(DOMAIN, "ship", None, retry=[1, 2])
