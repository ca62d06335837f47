"""Completion in a transaction of the handler's own: effects and outcome commit together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import pytest

from commandbus.domain.batch import BatchStatus
from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.errors import ConfigurationError, LeaseLost, PayloadError
from commandbus.testing.conformance.helpers import AT_ONCE, registry_of, require
from commandbus.testing.harness import DOMAIN, CallerTransaction, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry

Step = Callable[[Any, CallerTransaction, list[Exception]], Any]


class Completing:
    """A handler that begins a transaction, completes its command in it, and then does `then`."""

    def __init__(self, bus: Harness, then: Callable[..., Any], result: Any = "done") -> None:
        require(bus, "caller_transactions")
        self.bus, self.then, self.result = bus, then, result
        self.attempts: list[int] = []
        self.refused: list[Exception] = []
        self.before: Callable[[], Any] = lambda: None

    @property
    def handler(self) -> Any:
        return self._async if self.bus.runtime == "asyncio" else self._blocking

    def _blocking(self, command: Any, context: Any) -> Any:
        self.attempts.append(context.attempt)
        self.before()
        with ExitStack() as stack:
            mine = self._begin(stack)
            try:
                context.complete(self.result, within=mine.connection)
            except Exception as error:
                self.refused.append(error)
                mine.rollback()
                raise
            return self.then(mine, context.attempt)

    async def _async(self, command: Any, context: Any) -> Any:
        self.attempts.append(context.attempt)
        await asyncio.to_thread(self.before)
        stack = ExitStack()
        try:
            mine = await asyncio.to_thread(self._begin, stack)
            try:
                await context.complete(self.result, within=mine.connection)
            except Exception as error:
                self.refused.append(error)
                await asyncio.to_thread(mine.rollback)
                raise
            return await asyncio.to_thread(self.then, mine, context.attempt)
        finally:
            await asyncio.to_thread(stack.close)

    def _begin(self, stack: ExitStack) -> CallerTransaction:
        assert self.bus.configuration.begin is not None
        return stack.enter_context(self.bus.configuration.begin(self.bus))


def commit(mine: CallerTransaction, attempt: int) -> str:
    mine.commit()
    return "ignored"


class CompletingSuite:
    def test_the_outcome_commits_with_the_handlers_transaction(self, bus: Harness) -> None:
        completing = Completing(bus, commit, {"order": 7})
        with bus.run_worker(registry_of(ship=completing.handler)) as running:
            record = bus.wait(bus.send())
            running.wait_until_idle()
        assert (record.status, record.result) == (CommandStatus.COMPLETED, {"order": 7})
        assert record.started_at is not None
        assert completing.attempts == [1]
        assert (running.metrics.leases_lost, running.metrics.commands_settled) == (0, 1)
        assert running.worker.last_exceptions == []

    def test_a_rollback_and_an_exception_are_an_ordinary_failure(self, bus: Harness) -> None:
        def fail_once(mine: CallerTransaction, attempt: int) -> None:
            if attempt == 1:
                mine.rollback()
                raise ConnectionError("no answer")
            mine.commit()

        completing = Completing(bus, fail_once)
        with bus.run_worker(registry_of(ship=completing.handler), retry_policy=AT_ONCE):
            record = bus.wait(bus.send())
        assert (record.status, record.result, record.attempts) == (CommandStatus.COMPLETED, "done", 2)
        assert completing.attempts == [1, 2]

    def test_a_return_without_a_commit_is_a_failure(self, bus: Harness) -> None:
        completing = Completing(bus, lambda mine, attempt: mine.rollback())
        with bus.run_worker(registry_of(ship=completing.handler)):
            record = bus.wait(bus.send(max_attempts=1))
        assert (record.status, record.error_code) == (PARKED, "NOT_COMMITTED")

    def test_an_exception_after_the_commit_changes_nothing(self, bus: Harness) -> None:
        def commit_and_fail(mine: CallerTransaction, attempt: int) -> None:
            mine.commit()
            raise ConnectionError("too late")

        completing = Completing(bus, commit_and_fail)
        with bus.run_worker(registry_of(ship=completing.handler), retry_policy=AT_ONCE) as running:
            record = bus.wait(bus.send())
            running.wait_until_idle()
        assert (record.status, record.result) == (CommandStatus.COMPLETED, "done")
        assert completing.attempts == [1]
        assert running.metrics.leases_lost == 0

    def test_a_handler_that_lost_its_lease_is_refused(self, bus: Harness) -> None:
        completing, other = Completing(bus, commit, "stale"), bus.worker(name="other")
        fresh: list[Any] = []

        def lose_the_lease() -> None:
            bus.advance(31)
            fresh.append(bus.take(other))

        completing.before = lose_the_lease
        with bus.run_worker(registry_of(ship=completing.handler), concurrency=1):
            command_id = bus.send()
            eventually(lambda: bool(completing.refused))
            bus.call(other.complete, fresh[0], "fresh")
        assert isinstance(completing.refused[0], LeaseLost)
        assert bus.get(command_id).result == "fresh"

    def test_reply_and_batch_are_part_of_it(self, bus: Harness) -> None:
        completing = Completing(bus, commit)
        with bus.run_worker(registry_of(ship=completing.handler)):
            batch = bus.call(bus.bus.create_batch, [SendRequest(DOMAIN, "ship", reply_to="replies")])
            eventually(
                lambda: bus.call(bus.bus.get_batch, batch.batch_id).status is BatchStatus.COMPLETED
            )
        (reply,) = bus.query(domain="replies")
        assert reply.data["result"] == "done"

    def test_a_command_taken_by_hand_is_completed_the_same_way(self, bus: Harness) -> None:
        require(bus, "caller_transactions")
        assert bus.configuration.begin is not None
        command_id = bus.send()
        taken = bus.take(bus.worker())
        with bus.configuration.begin(bus) as mine:
            bus.call(taken.context.complete, 7, within=mine.connection)
            mine.commit()
        assert (bus.get(command_id).status, bus.get(command_id).result) == (CommandStatus.COMPLETED, 7)

    def test_a_run_that_was_given_up_is_not_completed_any_more(self, bus: Harness) -> None:
        """Its command was parked under the lease that it still works with."""
        require(bus, "caller_transactions")
        assert bus.configuration.begin is not None
        command_id, worker = bus.send(), bus.worker()
        received = bus.take(worker)
        bus.call(worker.fail, received, "too slow", is_transient=False)
        with bus.configuration.begin(bus) as mine:
            with pytest.raises(LeaseLost):
                bus.call(received.context.complete, "stale", within=mine.connection)
            mine.rollback()
        record = bus.get(command_id)
        assert (record.status, record.result) == (PARKED, None)

    def test_after_a_rollback_another_transaction_may_complete_it(self, bus: Harness) -> None:
        require(bus, "caller_transactions")
        assert bus.configuration.begin is not None
        command_id = bus.send()
        taken = bus.take(bus.worker())
        for result in ("first", "second"):
            with bus.configuration.begin(bus) as mine:
                bus.call(taken.context.complete, result, within=mine.connection)
                mine.rollback() if result == "first" else mine.commit()
        assert bus.get(command_id).result == "second"

    def test_the_result_of_a_typed_command_is_kept_as_its_type_says(self, bus: Harness) -> None:
        require(bus, "caller_transactions")
        assert bus.configuration.begin is not None
        registry = HandlerRegistry(DOMAIN)

        @registry.command
        async def ship() -> Decimal: ...  # type: ignore[empty-body]

        command_id = bus.send(DOMAIN, "ship", {})
        taken = bus.take(bus.worker(registry=registry))
        with bus.configuration.begin(bus) as mine:
            bus.call(taken.context.complete, Decimal("1.50"), within=mine.connection)
            mine.commit()
        assert ship.decode_result(bus.get(command_id).result) == Decimal("1.50")

    def test_a_result_that_is_no_json_leaves_the_transaction_usable(self, bus: Harness) -> None:
        require(bus, "caller_transactions")
        assert bus.configuration.begin is not None
        command_id = bus.send()
        taken = bus.take(bus.worker())
        with bus.configuration.begin(bus) as mine:
            with pytest.raises(PayloadError):
                bus.call(taken.context.complete, object(), within=mine.connection)
            bus.call(taken.context.complete, "text", within=mine.connection)
            mine.commit()
        assert bus.get(command_id).result == "text"

    def test_an_engine_without_transactions_refuses_it(self, bus: Harness) -> None:
        if bus.capabilities.caller_transactions:
            pytest.skip(f"{bus.configuration.name} can be part of a transaction")
        bus.send()
        taken = bus.take(bus.worker())
        with pytest.raises(ConfigurationError):
            bus.call(taken.context.complete, 1, within=object())
