"""The troubleshooting queue: what a person sees there, and what a person can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus.domain.command import Command
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.errors import (
    CommandNotFoundError,
    InvalidOperationError,
    PayloadError,
    PermanentCommandError,
)
from commandbus.testing.conformance.helpers import crash, park, registry_of, together
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness

Resolve = Callable[[Harness, UUID], None]
every_decision = pytest.mark.parametrize(
    "resolve", [Harness.operator_retry, Harness.operator_cancel, Harness.operator_complete]
)
every_action = pytest.mark.parametrize(
    ("name", "args"),
    [
        ("operator_retry", ()),
        ("operator_cancel", ()),
        ("operator_complete", ()),
        ("comment", ("hm",)),
        ("assign", ("ann",)),
    ],
)


def listed(bus: Harness, *args: Any, **kwargs: Any) -> list[UUID]:
    page = bus.call(bus.troubleshooting.list_troubleshooting, *args, **kwargs)
    return [record.command_id for record in page]


class TroubleshootingSuite:
    def test_a_parked_command_is_listed_with_payload_and_error(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "ship", {"article": 7})
        worker = bus.worker()
        bus.call(worker.fail, bus.take(worker), KeyError("article"), is_transient=False)
        (record,) = bus.call(bus.troubleshooting.list_troubleshooting)
        assert (record.command_id, record.status) == (command_id, PARKED)
        assert (record.data, record.error_code) == ({"article": 7}, "KeyError")

    def test_only_parked_commands_are_listed_newest_first(self, bus: Harness) -> None:
        first, second = park(bus), park(bus)
        bus.send()
        assert listed(bus) == [second, first]
        assert bus.call(bus.troubleshooting.count) == 2

    def test_the_list_may_be_narrowed(self, bus: Harness) -> None:
        ship, bill = park(bus), park(bus, command_type="bill")
        assert listed(bus, DOMAIN) == [bill, ship]
        assert listed(bus, DOMAIN, "ship") == [ship]
        assert listed(bus, "elsewhere") == []
        count = bus.troubleshooting.count
        assert [bus.call(count, *narrowed) for narrowed in ((DOMAIN,), (DOMAIN, "bill"))] == [2, 1]
        assert bus.call(count, "elsewhere") == 0

    def test_the_list_comes_in_pages(self, bus: Harness) -> None:
        parked = [park(bus) for _ in range(5)]
        seen: list[UUID] = []
        cursor = None
        for _ in range(3):
            page = bus.call(bus.troubleshooting.list_troubleshooting, after=cursor, limit=2)
            seen += [record.command_id for record in page]
            cursor = page.next
        assert (seen, cursor) == (parked[::-1], None)

    def test_a_retry_runs_with_fresh_attempts(self, bus: Harness) -> None:
        command_id = park(bus, max_attempts=1)
        bus.acting("ada").operator_retry(command_id)
        record = bus.get(command_id)
        assert (record.status, record.attempts) == (CommandStatus.PENDING, 0)
        taken = bus.take(bus.worker())
        assert (taken.command.command_id, taken.attempt) == (command_id, 1)

    def test_a_retry_after_crashes_forgets_them(self, bus: Harness) -> None:
        command_id = bus.send()
        for _ in range(3):
            crash(bus)
        assert bus.receive(bus.worker()) == []
        bus.operator_retry(command_id)
        taken = bus.take(bus.worker())
        assert (taken.attempt, taken.claimed.crashes) == (1, 0)

    def test_a_retry_with_other_data_runs_with_it(self, bus: Harness) -> None:
        command_id = park(bus, data={"article": 7})
        bus.operator_retry(command_id, data={"article": 8})
        assert bus.get(command_id).data == {"article": 8}
        assert bus.take(bus.worker()).command.data == {"article": 8}

    def test_a_retry_without_data_keeps_the_payload_and_with_none_replaces_it(
        self, bus: Harness
    ) -> None:
        kept, emptied = park(bus, data=[1]), park(bus, data=[2])
        bus.operator_retry(kept)
        bus.operator_retry(emptied, data=None)
        assert (bus.get(kept).data, bus.get(emptied).data) == ([1], None)

    def test_a_retry_with_bad_data_changes_nothing(self, bus: Harness) -> None:
        command_id = park(bus)
        with pytest.raises(PayloadError):
            bus.operator_retry(command_id, data=float("nan"))
        assert bus.get(command_id).status is PARKED

    def test_a_retry_that_fails_is_parked_again(self, bus: Harness) -> None:
        command_id, worker = park(bus), bus.worker()
        bus.operator_retry(command_id)
        bus.call(worker.fail, bus.take(worker), "again", is_transient=False)
        assert listed(bus) == [command_id]
        assert bus.stats().parked == 1

    def test_a_cancellation_ends_the_command_with_its_reason(self, bus: Harness) -> None:
        command_id = park(bus)
        bus.acting("ada").operator_cancel(command_id, "customer left")
        record = bus.get(command_id)
        assert (record.status, record.reason) == (CommandStatus.CANCELED, "customer left")
        assert record.error_code == "BROKEN"
        assert listed(bus) == []

    def test_a_completion_ends_the_command_with_the_given_result(self, bus: Harness) -> None:
        command_id = park(bus)
        bus.acting("ada").operator_complete(command_id, {"by": "hand"}, reason="done by phone")
        record = bus.get(command_id)
        assert (record.status, record.result) == (CommandStatus.COMPLETED, {"by": "hand"})
        assert record.reason == "done by phone"

    @every_decision
    def test_a_decision_about_what_is_not_parked_is_refused(
        self, bus: Harness, resolve: Resolve
    ) -> None:
        command_id = bus.send()
        with pytest.raises(InvalidOperationError, match="PENDING"):
            resolve(bus, command_id)
        bus.take(bus.worker())
        with pytest.raises(InvalidOperationError, match="IN_PROGRESS"):
            resolve(bus, command_id)

    @every_decision
    def test_a_decision_about_an_unknown_command_is_refused(
        self, bus: Harness, resolve: Resolve
    ) -> None:
        missing = uuid4()
        with pytest.raises(CommandNotFoundError, match=str(missing)):
            resolve(bus, missing)

    @every_action
    def test_an_id_alone_or_what_a_send_returned_finds_the_command(
        self, bus: Harness, name: str, args: tuple[Any, ...]
    ) -> None:
        act = getattr(bus.troubleshooting, name)
        parked = [park(bus) for _ in range(3)]
        sent = bus.send_result("elsewhere", "ship")
        worker = bus.worker("elsewhere")
        bus.call(worker.fail, bus.take(worker), PermanentCommandError("BROKEN"))
        for one in (parked[0], str(parked[1]), sent):
            bus.call(act, one, *args)
        bus.send("elsewhere", command_id=parked[2])
        with pytest.raises(InvalidOperationError, match="Several domains"):
            bus.call(act, parked[2], *args)
        bus.call(act, parked[2], *args, domain=DOMAIN)
        with pytest.raises(CommandNotFoundError):
            bus.call(act, parked[2], *args, domain="nowhere")

    def test_a_cancel_without_a_reason_names_the_operator(self, bus: Harness) -> None:
        command_id = park(bus)
        bus.call(bus.troubleshooting.acting("ada").operator_cancel, command_id)
        assert bus.get(command_id).reason == "canceled by ada"

    @every_decision
    def test_of_many_operators_at_once_one_decides(self, bus: Harness, resolve: Resolve) -> None:
        command_id = park(bus)
        results = together(6, lambda _: resolve(bus, command_id))
        assert results.count(None) == 1
        assert sum(isinstance(result, InvalidOperationError) for result in results) == 5, results
        assert bus.stats().parked == 0

    def test_a_retry_wakes_an_idle_worker(self, bus: Harness) -> None:
        command_id = park(bus)
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            bus.operator_retry(command_id)
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
        assert "fallback" not in running.metrics.wakeups

    def test_edited_data_reaches_a_typed_handler(self, bus: Harness) -> None:
        got: list[int] = []

        def ship(command: Command[int], context: Any) -> None:
            got.append(command.data)

        command_id = bus.send(DOMAIN, "ship", "seven")
        with bus.run_worker(registry_of(ship=ship)):
            assert bus.wait(command_id).error_code == "UNDECODABLE"
            bus.operator_retry(command_id, data=7)
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
        assert got == [7]
