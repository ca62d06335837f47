"""Circuit breakers: what the fleet knows, and what workers do about it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from commandbus.domain.breaker import BreakerState, CircuitBreaker
from commandbus.domain.breaker_board import BreakerBoard
from commandbus.domain.command import Command
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import BreakerOpen, RetryAfter, TransientCommandError
from commandbus.operations.breakers import share
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry

AT_ONCE = RetryPolicy(max_attempts=50, backoff_schedule=[0])


def guarded(handler: Any, breaker: CircuitBreaker) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register(DOMAIN, "ship", handler, retry=AT_ONCE, breaker=breaker)
    return registry


def known(bus: Harness) -> Any:
    return bus.call(bus.bus.get_breaker, "bank")


def _come_up(bus: Harness, command_id: UUID) -> None:
    """Let time pass until the command got through."""

    def through() -> bool:
        bus.advance(1)
        return bool(bus.get(command_id).result == "up")

    eventually(through)


class BreakerSuite:
    def test_it_opens_after_the_threshold_and_no_attempt_is_used(self, bus: Harness) -> None:
        calls: list[int] = []

        def fail(command: Any, context: Any) -> None:
            calls.append(context.attempt)
            raise TransientCommandError("DOWN")

        rule = CircuitBreaker("bank", threshold=3, cooldown=600)
        with bus.run_worker(guarded(fail, rule), concurrency=1) as running:
            command_id = bus.send()
            eventually(lambda: known(bus) and known(bus).state is BreakerState.OPEN)
            running.wait_until_idle()
            assert calls == [1, 2, 3]
            record = bus.get(command_id)
            assert (record.status, record.attempts) == (CommandStatus.PENDING, 3)
            assert bus.seconds_until(record.due_at) > 500

    def test_probes_close_it_again(self, bus: Harness) -> None:
        state = {"down": True}

        def work(command: Any, context: Any) -> str:
            if state["down"]:
                raise TransientCommandError("DOWN")
            return "up"

        rule = CircuitBreaker("bank", threshold=1, cooldown=0.05, probes=2)
        with bus.run_worker(guarded(work, rule), concurrency=1):
            ids = [bus.send(), bus.send()]
            eventually(lambda: known(bus))
            state["down"] = False
            for _ in ids:
                bus.advance(1)
            for command_id in ids:
                _come_up(bus, command_id)
            assert eventually(lambda: known(bus).state is BreakerState.CLOSED)

    def test_a_payload_that_does_not_fit_is_no_probe(self, bus: Harness) -> None:
        state, registry = {"down": True}, HandlerRegistry()
        rule = CircuitBreaker("bank", threshold=1, cooldown=0.05, probes=1)

        @registry.handler(DOMAIN, "ship", retry=AT_ONCE, breaker=rule)
        def ship(command: Command[int], context: Any) -> str:
            if state["down"]:
                raise TransientCommandError("DOWN")
            return "up"

        with bus.run_worker(registry, concurrency=1):
            good = bus.send(DOMAIN, "ship", 1)
            eventually(lambda: known(bus))
            wrong = bus.send(DOMAIN, "ship", "not a number", priority="high")
            assert bus.wait(wrong).error_code == "UNDECODABLE"
            state["down"] = False
            _come_up(bus, good)

    def test_an_operator_opens_and_resets_it(self, bus: Harness) -> None:
        bus.call(bus.bus.acting("ann").open_breaker, "bank", 600, reason="audit")
        snapshot = known(bus)
        assert (snapshot.state, snapshot.changed_by) == (BreakerState.OPEN, "ann")
        bus.call(bus.bus.acting("bob").reset_breaker, "bank")
        assert known(bus).state is BreakerState.CLOSED
        (listed,) = bus.call(bus.bus.list_breakers)
        assert (listed.target, listed.changed_by) == ("bank", "bob")

    def test_breakers_come_in_pages_by_target(self, bus: Harness) -> None:
        for target in ("mail", "bank", "post"):
            bus.call(bus.bus.open_breaker, target, 600)
        first = bus.call(bus.bus.list_breakers, limit=2)
        assert [known.target for known in first] == ["bank", "mail"]
        rest = bus.call(bus.bus.list_breakers, after=first.next, limit=2)
        assert ([known.target for known in rest], rest.next) == (["post"], None)

    def test_workers_follow_what_the_fleet_knows(self, bus: Harness) -> None:
        rule = CircuitBreaker("bank", threshold=1000)
        done = guarded(lambda command, context: "done", rule)
        with bus.run_worker(done, concurrency=1):
            bus.wait(bus.send())
            bus.call(bus.bus.open_breaker, "bank", 600)
            eventually(lambda: bus.bus.breakers.allow(rule) > 0)
            held = bus.send()
            eventually(lambda: bus.seconds_until(bus.get(held).due_at) > 500)
            bus.call(bus.bus.reset_breaker, "bank")
            eventually(lambda: bus.bus.breakers.allow(rule) == 0)
            bus.advance(700)
            assert bus.wait(held).result == "done"

    @pytest.mark.parametrize("answer", ["up", "down"])
    def test_what_an_operator_opens_is_not_ended_by_a_probe(self, bus: Harness, answer: str) -> None:
        scope, time = bus.bus.scope, [0.0]
        breakers = BreakerBoard(lambda: None, lambda: time[0])
        rule = CircuitBreaker("bank", threshold=1, cooldown=5, probes=1)
        breakers.allow(rule)
        breakers.failed("bank")
        bus.run(share(scope, breakers, "worker")).confirm(breakers)
        bus.advance(6)
        time[0] += 6
        assert breakers.allow(rule) == 0
        bus.call(bus.bus.acting("ann").open_breaker, "bank", 600)
        breakers.ended("bank", None if answer == "up" else TransientCommandError("DOWN"))
        bus.run(share(scope, breakers, "worker")).confirm(breakers)
        assert (known(bus).state, known(bus).changed_by) == (BreakerState.OPEN, "ann")
        assert breakers.allow(rule) > 500

    def test_a_guard_raises_instead_of_entering(self, bus: Harness) -> None:
        rule = CircuitBreaker("bank", threshold=1, cooldown=600)
        with pytest.raises(KeyError), bus.bus.breaker(rule):
            raise KeyError("x")
        with pytest.raises(BreakerOpen, match="bank") as caught, bus.bus.breaker(rule):
            raise AssertionError("entered")
        assert caught.value.seconds > 500

    def test_the_target_may_say_when_to_come_back(self, bus: Harness) -> None:
        rule = CircuitBreaker("bank", threshold=100)
        with pytest.raises(RetryAfter), bus.bus.breaker(rule):
            raise RetryAfter(77)
        with pytest.raises(BreakerOpen) as caught, bus.bus.breaker(rule):
            raise AssertionError("entered")
        assert 70 < caught.value.seconds <= 77

    def test_a_late_answer_does_not_cut_it_short(self, bus: Harness) -> None:
        rule, breakers = CircuitBreaker("bank", threshold=1, cooldown=600), bus.bus.breakers
        assert [breakers.allow(rule), breakers.allow(rule)] == [0, 0]
        breakers.failed("bank")
        breakers.ended("bank", RetryAfter(7))
        assert breakers.allow(rule) > 500

    @pytest.mark.parametrize("wrong", [{"threshold": 0}, {"probes": 0}, {"cooldown": -1}])
    def test_a_wrong_rule_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"threshold|probes|cooldown"):
            CircuitBreaker("bank", **wrong)
