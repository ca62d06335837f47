"""What failures amount to, beyond the error matrix: mapped exceptions, windows of time, releases."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from commandbus.domain.command import Command
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.outcome import UNKNOWN_HANDLER_PATIENCE
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import (
    BusinessRuleException,
    ConfigurationError,
    PayloadError,
    PermanentCommandError,
    Snooze,
    TransientCommandError,
)
from commandbus.testing.conformance.helpers import AT_ONCE
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry

PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


def failing(error: Exception, **options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()

    def ship(command: Any, context: Any) -> None:
        raise error

    registry.register(DOMAIN, "ship", ship, **options)
    return registry


def _is_last(runs: list[int], attempt: int) -> bool:
    return runs[-1:] == [attempt]


class VerdictsSuite:
    @pytest.mark.parametrize(
        ("means", "status"),
        [
            (BusinessRuleException, CommandStatus.FAILED),
            (PermanentCommandError, PARKED),
            (lambda error: BusinessRuleException("NO_STOCK", str(error)), CommandStatus.FAILED),
        ],
    )
    def test_an_exception_means_what_the_registry_says(
        self, bus: Harness, means: Any, status: CommandStatus
    ) -> None:
        registry = failing(KeyError("article 7"))
        registry.map_exception(LookupError, means)
        with bus.run_worker(registry):
            record = bus.wait(bus.send())
        assert record.status is status
        assert record.error is not None
        assert record.error.code == ("KeyError" if isinstance(means, type) else "NO_STOCK")
        assert "article 7" in record.error.message
        assert record.error.frame is not None
        assert record.error.frame.endswith("ship")

    def test_the_nearest_class_and_the_handler_s_own_map_count(self, bus: Harness) -> None:
        own = {KeyError: BusinessRuleException}
        registry = failing(KeyError("x"), errors=own)
        registry.map_exception(LookupError, PermanentCommandError)
        registry.map_exception(KeyError, PermanentCommandError)
        with bus.run_worker(registry):
            assert bus.wait(bus.send()).status is CommandStatus.FAILED

    def test_what_is_not_mapped_is_transient(self, bus: Harness) -> None:
        registry = failing(OSError("x"))
        registry.map_exception(LookupError, PermanentCommandError)
        with bus.run_worker(registry, retry_policy=AT_ONCE):
            record = bus.wait(bus.send())
        assert (record.attempts, record.reason) == (3, "EXHAUSTED")

    def test_a_map_that_says_nothing_is_refused(self) -> None:
        registry = HandlerRegistry()
        with pytest.raises(ConfigurationError, match="exception classes"):
            registry.map_exception("KeyError", PermanentCommandError)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="says nothing about retries"):
            registry.map_exception(KeyError, ValueError)
        with pytest.raises(ConfigurationError, match="neither"):
            registry.map_exception(KeyError, "permanent")  # type: ignore[arg-type]

    def test_no_retry_begins_after_the_window(self, bus: Harness) -> None:
        policy = RetryPolicy(max_attempts=50, backoff_schedule=[40], window=100)
        registry, runs = HandlerRegistry(), []

        @registry.handler(DOMAIN, "ship")
        def ship(command: Any, context: Any) -> None:
            runs.append(context.attempt)
            raise OSError("busy")

        with bus.run_worker(registry, retry_policy=policy):
            command_id = bus.send(delay=500)
            bus.advance(501)
            for attempt in (1, 2, 3):
                eventually(partial(_is_last, runs, attempt))
                if attempt < 3:
                    eventually(lambda: bus.get(command_id).status is CommandStatus.PENDING)
                    bus.advance(41)
            record = bus.wait(command_id)
        assert (record.status, record.reason) == (PARKED, "RETRY_WINDOW")
        assert record.error_code == "OSError"

    def test_the_total_timeout_bounds_all_attempts_together(self, bus: Harness) -> None:
        registry = failing(OSError("busy"), total_timeout=100)
        with bus.run_worker(registry, retry_policy=RetryPolicy(9, [60])):
            command_id = bus.send()
            eventually(lambda: bus.get(command_id).error_code == "OSError")
            bus.advance(61)
            record = bus.wait(command_id)
        assert (record.status, record.attempts, record.reason) == (PARKED, 2, "TOTAL_TIMEOUT")

    def test_one_that_waited_too_long_is_not_begun(self, bus: Harness) -> None:
        registry = failing(AssertionError("never called"), total_timeout=100)
        command_id = bus.send()
        bus.advance(101)
        with bus.run_worker(registry):
            record = bus.wait(command_id)
        assert (record.status, record.error_code) == (PARKED, "TOTAL_TIMEOUT")

    def test_what_an_operator_sends_back_has_all_of_its_time_again(self, bus: Harness) -> None:
        registry = failing(OSError("busy"), total_timeout=100)
        command_id = bus.send()
        bus.advance(101)
        with bus.run_worker(registry, retry_policy=RetryPolicy(2, [1], window=50)):
            bus.wait(command_id)
            bus.operator_retry(command_id)
            eventually(lambda: bus.get(command_id).error_code == "OSError")
            assert bus.get(command_id).status is CommandStatus.PENDING, "it is tried again"
            bus.advance(2)
            record = bus.wait(command_id)
        assert (record.status, record.attempts, record.reason) == (PARKED, 2, "EXHAUSTED")

    @pytest.mark.parametrize("wrong", [0, -1, "soon"])
    def test_a_window_that_is_none_is_refused(self, wrong: Any) -> None:
        with pytest.raises((ConfigurationError, ValueError), match="window"):
            RetryPolicy(window=wrong)

    def test_snoozes_do_not_use_up_the_patience_for_unknown_handlers(self, bus: Harness) -> None:
        worker, registry = bus.worker(), failing(Snooze(0))
        command_id = bus.send()
        for _ in range(UNKNOWN_HANDLER_PATIENCE + 5):
            bus.call(worker.release, bus.take(worker))
        other = HandlerRegistry()
        other.register(DOMAIN, "pack", lambda command, context: None)
        with bus.run_worker(other):
            eventually(lambda: bus.kinds(command_id).count("RELEASED") > UNKNOWN_HANDLER_PATIENCE + 5)
        assert bus.get(command_id).status is CommandStatus.PENDING
        assert registry.has_handler(DOMAIN, "ship")

    def test_an_edited_payload_must_fit_its_handler(self, bus: Harness) -> None:
        registry, shipped = HandlerRegistry(), []

        @registry.handler(DOMAIN, "ship")
        def ship(command: Command[dict[str, int]], context: Any) -> None:
            shipped.append(command.data)

        command_id = bus.send(data={"n": "seven"})
        queue = bus.queue_class(bus.bus, registry)
        with bus.run_worker(registry):
            assert bus.wait(command_id).error_code == "UNDECODABLE"
            with pytest.raises(PayloadError, match=r"does not fit.*ship"):
                bus.call(queue.operator_retry, command_id, data={"n": "eight"})
            assert bus.get(command_id).status is PARKED
            bus.call(queue.acting("ann").operator_retry, command_id, data={"n": 8})
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
        assert shipped == [{"n": 8}]
        edit = next(e for e in bus.trail(command_id) if e.event_type == "OPERATOR_RETRY")
        assert edit.details["original_data"] == {"n": "seven"}

    def test_the_trail_begins_with_the_headers(self, bus: Harness) -> None:
        command_id = bus.send(headers={"tenant": "7"})
        assert bus.trail(command_id)[0].details["headers"] == {"tenant": "7"}
        assert bus.trail(bus.send())[0].details["headers"] == {}

    def test_a_transactional_handler_needs_a_store_that_can(self, bus: Harness) -> None:
        registry = failing(TransientCommandError("X"), transactional=True)
        if bus.capabilities.handler_transactions:
            assert bus.worker(registry=registry).domains == (DOMAIN,)
        else:
            with pytest.raises(ConfigurationError, match=r"ship.*transactional"):
                bus.worker(registry=registry)
