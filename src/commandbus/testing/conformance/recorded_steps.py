"""Durable steps inside a handler: recorded once, replayed when the handler runs again."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.errors import (
    InvalidArgumentError,
    LeaseLost,
    PayloadError,
    PermanentCommandError,
    TransientCommandError,
)
from commandbus.testing.conformance.helpers import AT_ONCE, registry_of
from commandbus.testing.harness import DOMAIN, Harness


class Effects:
    """Counts how often each effect really happens; the handler fails a given number of times."""

    def __init__(self, *failures: BaseException) -> None:
        self.calls: list[str] = []
        self.seen: list[Any] = []
        self._failures = list(failures)

    def charge(self, amount: int) -> dict[str, Any]:
        self.calls.append("charge")
        return {"paid": amount, "parts": (1, 2)}

    async def ship(self) -> str:
        self.calls.append("ship")
        return "shipped"

    async def handle(self, command: Any, context: Any) -> Any:
        paid = await context.step("charge", self.charge, 5)
        self.seen.append(paid)
        if self._failures:
            raise self._failures.pop(0)
        return [paid, await context.step("ship", self.ship)]

    def handle_blocking(self, command: Any, context: Any) -> Any:
        paid = context.step("charge", self.charge, amount=5)
        self.seen.append(paid)
        if self._failures:
            raise self._failures.pop(0)
        return paid


class RecordedStepSuite:
    def test_a_retry_replays_what_was_recorded(self, bus: Harness) -> None:
        effects = Effects(TransientCommandError("LATER"), TransientCommandError("LATER"))
        with bus.run_worker(registry_of(ship=effects.handle), retry_policy=AT_ONCE):
            record = bus.wait(bus.send())
        assert record.result == [{"paid": 5, "parts": [1, 2]}, "shipped"]
        assert effects.calls == ["charge", "ship"]
        # The first run sees what a replay sees.
        assert effects.seen == [{"paid": 5, "parts": [1, 2]}] * 3

    def test_blocking_handlers_have_them_too(self, bus: Harness) -> None:
        effects = Effects(TransientCommandError("LATER"))
        with bus.run_worker(registry_of(ship=effects.handle_blocking), retry_policy=AT_ONCE):
            record = bus.wait(bus.send())
        assert (record.status, record.attempts) == ("COMPLETED", 2)
        assert effects.calls == ["charge"]

    def test_they_outlive_a_crash_and_an_operator(self, bus: Harness) -> None:
        effects = Effects()
        command_id, worker = bus.send(), bus.worker()
        context = bus.take(worker, visibility_timeout=5).context
        assert bus.call(context.step, "charge", effects.charge, 5)["paid"] == 5
        bus.advance(6)
        taken = bus.take(worker)
        bus.call(worker.fail, taken, PermanentCommandError("BROKEN"))
        bus.operator_retry(command_id)
        context = bus.take(worker).context
        assert bus.call(context.step, "charge", effects.charge, 7)["paid"] == 5
        assert effects.calls == ["charge"]

    def test_steps_of_another_command_are_others(self, bus: Harness) -> None:
        effects, worker = Effects(), bus.worker()
        bus.send()
        bus.send()
        for taken in bus.receive(worker, batch_size=2):
            bus.call(taken.context.step, "charge", effects.charge, 5)
        assert effects.calls == ["charge", "charge"]

    def test_nothing_is_recorded_without_the_lease(self, bus: Harness) -> None:
        effects, worker = Effects(), bus.worker()
        bus.send()
        context = bus.take(worker, visibility_timeout=5).context
        bus.advance(6)
        with pytest.raises(LeaseLost):
            bus.call(context.step, "charge", effects.charge, 5)
        context = bus.take(worker).context
        bus.call(context.step, "charge", effects.charge, 5)
        assert effects.calls == ["charge", "charge"]

    def test_bad_input_is_refused(self, bus: Harness) -> None:
        bus.send(DOMAIN)
        context = bus.take(bus.worker()).context
        with pytest.raises(InvalidArgumentError, match="name of the step"):
            bus.call(context.step, "", Effects().charge, 5)
        with pytest.raises(PayloadError, match="result of step 'nan'"):
            bus.call(context.step, "nan", lambda: float("nan"))
