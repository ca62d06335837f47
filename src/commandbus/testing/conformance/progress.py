"""Progress: what a running command says about itself."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.domain.command import Command
from commandbus.errors import InvalidArgumentError
from commandbus.testing.conformance.helpers import about, registry_of
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.worker.context import HandlerContext, SyncHandlerContext


class ProgressSuite:
    def test_progress_is_seen_while_the_command_runs(self, bus: Harness) -> None:
        command_id = bus.send()
        taken = bus.take(bus.worker())
        bus.call(taken.context.progress, 40, "packing")
        progress = bus.get(command_id).progress
        assert progress is not None
        assert (progress.percent, progress.message) == (40.0, "packing")
        assert bus.seconds_until(progress.reported_at) == about(0)

    def test_the_latest_report_stands(self, bus: Harness) -> None:
        command_id = bus.send()
        taken = bus.take(bus.worker())
        for percent in (10, 99.5):
            bus.call(taken.context.progress, percent)
        progress = bus.get(command_id).progress
        assert progress is not None
        assert (progress.percent, progress.message) == (99.5, "")

    def test_commands_of_one_claim_report_apart(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(2)]
        first, _ = bus.receive(bus.worker(), 2)
        bus.call(first.context.progress, 50)
        progress = [bus.get(command_id).progress for command_id in ids]
        assert progress[0] is not None
        assert progress[1] is None

    @pytest.mark.parametrize("percent", [-1, 100.1, float("nan")])
    def test_a_share_that_is_none_is_refused(self, bus: Harness, percent: float) -> None:
        command_id = bus.send()
        taken = bus.take(bus.worker())
        with pytest.raises(InvalidArgumentError, match="percent must be between 0 and 100"):
            bus.call(taken.context.progress, percent)
        assert bus.get(command_id).progress is None

    @pytest.mark.parametrize("message", ["x" * 501, "\0", "\ud800"])
    def test_a_message_that_cannot_be_kept_is_refused(self, bus: Harness, message: str) -> None:
        bus.send()
        taken = bus.take(bus.worker())
        with pytest.raises(InvalidArgumentError, match="message"):
            bus.call(taken.context.progress, 50, message)

    def test_handlers_report_from_both_kinds(self, bus: Harness) -> None:
        async def count(command: Command[Any], context: HandlerContext) -> None:
            await context.progress(20, "counting")

        def ship(command: Command[Any], context: SyncHandlerContext) -> None:
            context.progress(80, "shipping")

        with bus.run_worker(registry_of(ship=ship, count=count)):
            shipped = bus.wait(bus.send(DOMAIN, "ship")).progress
            counted = bus.wait(bus.send(DOMAIN, "count")).progress
        assert shipped is not None
        assert counted is not None
        assert (shipped.percent, shipped.message) == (80, "shipping")
        assert (counted.percent, counted.message) == (20, "counting")

    def test_progress_leaves_no_event(self, bus: Harness) -> None:
        command_id = bus.send()
        bus.call(bus.take(bus.worker()).context.progress, 40)
        assert bus.kinds(command_id) == ["SENT", "RECEIVED"]
