"""Uniqueness: of ids for ever, of keys for as long as their command lives."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from commandbus.domain.command import SendRequest, SendResult
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.unique import Unique
from commandbus.errors import (
    BusinessRuleException,
    DuplicateCommandError,
    InvalidArgumentError,
    UniqueKeyHeld,
)
from commandbus.testing.conformance.helpers import complete, crash, park, together
from commandbus.testing.harness import DOMAIN, Harness


def is_held(bus: Harness) -> bool:
    """Whether the key "k" is taken; if not, it is now."""
    return bus.send_result(DOMAIN, "again", unique_key="k").duplicate


class UniquenessSuite:
    def test_a_second_command_of_one_id_is_refused(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "ship", "first")
        with pytest.raises(DuplicateCommandError, match=str(command_id)) as caught:
            bus.send(DOMAIN, "ship", "second", command_id=command_id)
        assert (caught.value.domain, caught.value.command_id) == (DOMAIN, command_id)
        assert bus.get(command_id).data == "first"
        assert bus.stats().depth == 1

    def test_an_id_stays_taken_after_its_command_ended(self, bus: Harness) -> None:
        command_id = complete(bus)
        with pytest.raises(DuplicateCommandError):
            bus.send(command_id=command_id)

    def test_another_domain_may_have_the_same_id(self, bus: Harness) -> None:
        command_id = bus.send("orders", "ship", 1)
        assert bus.send("billing", "ship", 2, command_id=command_id) == command_id
        assert bus.get(command_id, "orders").data == 1
        assert bus.get(command_id, "billing").data == 2

    def test_of_many_sends_of_one_id_at_once_one_succeeds(self, bus: Harness) -> None:
        wanted = uuid4()
        results = together(8, lambda n: bus.send(DOMAIN, "ship", n, command_id=wanted))
        assert results.count(wanted) == 1
        assert sum(isinstance(result, DuplicateCommandError) for result in results) == 7, results
        assert bus.stats().depth == 1

    def test_a_refused_send_takes_no_other_with_it(self, bus: Harness) -> None:
        known = bus.send()

        def send(number: int) -> UUID:
            return bus.send(command_id=known) if number % 2 else bus.send()

        results = together(10, send)
        assert sum(isinstance(result, DuplicateCommandError) for result in results) == 5, results
        assert bus.stats().depth == 6

    def test_a_held_key_adds_nothing_and_names_its_holder(self, bus: Harness) -> None:
        holder = bus.send_result(DOMAIN, "ship", "first", unique_key="order-7")
        second = bus.send_result(DOMAIN, "ship", "second", unique_key="order-7")
        assert (holder.duplicate, second.duplicate) == (False, True)
        assert second.command_id == holder.command_id
        assert bus.stats().depth == 1
        assert bus.get(holder.command_id).unique_key == "order-7"

    def test_a_repeated_send_is_recognised_by_its_id_before_its_key(self, bus: Harness) -> None:
        command_id = bus.send(unique_key="k")
        with pytest.raises(DuplicateCommandError):
            bus.send(command_id=command_id, unique_key="k")
        request = SendRequest(DOMAIN, "ship", command_id=uuid4(), unique_key="other")
        with pytest.raises(DuplicateCommandError):
            bus.send_many([request, request])
        assert bus.stats().depth == 1

    @pytest.mark.parametrize("on_conflict", ["return", "reject", "replace"])
    def test_a_repeated_send_does_not_replace_its_own_command(
        self, bus: Harness, on_conflict: str
    ) -> None:
        for window in (None, 60):
            unique, key = Unique(window=window, on_conflict=on_conflict), f"k {window}"
            command_id = bus.send(unique_key=key, unique=unique)
            with pytest.raises(DuplicateCommandError):
                bus.send(command_id=command_id, unique_key=key, unique=unique)
            assert bus.get(command_id).status is CommandStatus.PENDING

    def test_a_key_holds_in_its_domain_only(self, bus: Harness) -> None:
        assert not bus.send_result("orders", "ship", unique_key="k").duplicate
        assert not bus.send_result("billing", "ship", unique_key="k").duplicate

    def test_of_many_sends_of_one_key_at_once_one_is_added(self, bus: Harness) -> None:
        results = together(8, lambda n: bus.send_result(DOMAIN, "ship", n, unique_key="k"))
        sent = [result for result in results if isinstance(result, SendResult)]
        assert len(sent) == 8, results
        assert sum(not result.duplicate for result in sent) == 1
        assert len({result.command_id for result in sent}) == 1
        assert bus.stats().depth == 1

    def test_a_key_twice_in_one_bulk_send_is_added_once(self, bus: Harness) -> None:
        request = SendRequest(DOMAIN, "ship", unique_key="k")
        first, second = bus.send_many([request, request])
        assert (first.duplicate, second.duplicate) == (False, True)
        assert first.command_id == second.command_id
        assert bus.stats().depth == 1

    def test_a_completed_command_frees_its_key(self, bus: Harness) -> None:
        complete(bus, unique_key="k")
        assert not is_held(bus)

    def test_a_failed_command_frees_its_key(self, bus: Harness) -> None:
        bus.send(unique_key="k")
        worker = bus.worker()
        bus.call(worker.fail, bus.take(worker), BusinessRuleException("NO"))
        assert not is_held(bus)

    def test_a_canceled_command_frees_its_key(self, bus: Harness) -> None:
        bus.cancel(bus.send(unique_key="k", delay=60))
        assert not is_held(bus)

    def test_an_expired_command_frees_its_key(self, bus: Harness) -> None:
        bus.send(unique_key="k", expires_at=bus.now + timedelta(seconds=5))
        bus.advance(6)
        bus.receive(bus.worker())
        assert not is_held(bus)

    def test_a_delayed_command_holds_its_key(self, bus: Harness) -> None:
        bus.send(unique_key="k", delay=60)
        assert is_held(bus)

    def test_a_running_command_holds_its_key(self, bus: Harness) -> None:
        bus.send(unique_key="k")
        bus.take(bus.worker())
        assert is_held(bus)

    def test_a_command_that_waits_for_its_retry_holds_its_key(self, bus: Harness) -> None:
        bus.send(unique_key="k")
        worker = bus.worker()
        bus.call(worker.fail, bus.take(worker), "busy")
        assert is_held(bus)

    def test_a_command_whose_worker_died_holds_its_key(self, bus: Harness) -> None:
        bus.send(unique_key="k")
        for _ in range(2):
            crash(bus)
            assert is_held(bus)
        crash(bus)
        assert bus.receive(bus.worker()) == []
        assert is_held(bus), "parked, so it may still run"

    def test_a_parked_command_holds_its_key(self, bus: Harness) -> None:
        park(bus, unique_key="k")
        assert is_held(bus)

    @pytest.mark.parametrize(
        ("resolve", "held"),
        [
            (Harness.operator_retry, True),
            (Harness.operator_cancel, False),
            (Harness.operator_complete, False),
        ],
    )
    def test_an_operators_decision_frees_the_key_if_it_is_final(
        self, bus: Harness, resolve: Callable[[Harness, UUID], None], held: bool
    ) -> None:
        resolve(bus, park(bus, unique_key="k"))
        assert is_held(bus) is held

    def test_a_key_freed_by_its_first_holder_is_held_by_the_next(self, bus: Harness) -> None:
        for _ in range(3):
            complete(bus, unique_key="k")
        last = bus.send(unique_key="k")
        assert bus.send_result(DOMAIN, "ship", unique_key="k").command_id == last
        assert bus.get(last).status is CommandStatus.PENDING


class UniqueOptionsSuite:
    def test_a_window_holds_after_the_end(self, bus: Harness) -> None:
        first = complete(bus, unique_key="k", unique=Unique(window=60))
        again = bus.send_result(DOMAIN, "ship", unique_key="k", unique=Unique(window=60))
        assert (again.duplicate, again.command_id) == (True, first)
        bus.advance(61)
        assert not bus.send_result(DOMAIN, "ship", unique_key="k", unique=Unique(window=60)).duplicate

    def test_a_window_ends_when_its_command_is_pruned(self, bus: Harness) -> None:
        complete(bus, unique_key="k", unique=Unique(window=7_200))
        bus.advance(3_601)
        assert bus.send_result(DOMAIN, "ship", unique_key="k", unique=Unique(window=60)).duplicate
        assert bus.call(bus.bus.prune, {"COMPLETED": 3_600}).gone == 1
        assert not bus.send_result(DOMAIN, "ship", unique_key="k", unique=Unique(window=60)).duplicate

    def test_after_its_window_a_key_holds_as_long_as_its_command_lives(self, bus: Harness) -> None:
        bus.send(unique_key="k", unique=Unique(window=10))
        bus.advance(11)
        assert bus.send_result(DOMAIN, "ship", unique_key="k", unique=Unique(window=10)).duplicate

    def test_a_key_may_hold_only_until_its_command_runs(self, bus: Harness) -> None:
        waiting = Unique(states=(CommandStatus.PENDING,))
        first = bus.send(unique_key="k", unique=waiting)
        assert bus.send_result(DOMAIN, "ship", unique_key="k", unique=waiting).duplicate
        worker = bus.worker()
        taken = bus.take(worker)
        second = bus.send_result(DOMAIN, "ship", unique_key="k", unique=waiting)
        assert not second.duplicate
        bus.call(worker.complete, taken)
        third = bus.send_result(DOMAIN, "ship", unique_key="k", unique=waiting)
        assert third.command_id == second.command_id != first, "the end of the first frees nothing"

    def test_a_send_may_be_refused(self, bus: Harness) -> None:
        holder = bus.send(unique_key="k")
        with pytest.raises(UniqueKeyHeld, match="'k'") as caught:
            bus.send(unique_key="k", unique=Unique(on_conflict="reject"))
        assert caught.value.holder == holder
        requests = [
            SendRequest(DOMAIN, "ship"),
            SendRequest(DOMAIN, "ship", unique_key="k", unique=Unique(on_conflict="reject")),
        ]
        with pytest.raises(UniqueKeyHeld):
            bus.send_many(requests)
        assert bus.stats().depth == 1, "all or none"

    def test_a_waiting_command_may_be_replaced(self, bus: Harness) -> None:
        first = bus.send(DOMAIN, "ship", 1, unique_key="k", reply_to="answers")
        replace = Unique(on_conflict="replace")
        second = bus.send_result(DOMAIN, "ship", 2, unique_key="k", unique=replace)
        assert not second.duplicate
        record = bus.get(first)
        assert (record.status, record.reason) == (CommandStatus.CANCELED, "REPLACED")
        assert bus.stats("answers").depth == 1, "its sender gets a reply"
        assert bus.take(bus.worker()).command.data == 2
        third = bus.send_result(DOMAIN, "ship", 3, unique_key="k", unique=replace)
        assert (third.duplicate, third.command_id) == (True, second.command_id), "it runs"

    def test_a_bulk_send_that_repeats_an_id_adds_and_replaces_nothing(self, bus: Harness) -> None:
        waiting, known = bus.send(unique_key="k"), bus.send()
        unique, twice = Unique(on_conflict="replace", window=60), uuid4()
        replacing = SendRequest(DOMAIN, "ship", command_id=twice, unique_key="k", unique=unique)
        for repeated in (known, twice):
            with pytest.raises(DuplicateCommandError):
                bus.send_many([replacing, SendRequest(DOMAIN, "ship", command_id=repeated)])
        assert bus.get(waiting).status is CommandStatus.PENDING
        assert bus.stats().ready == 2

    def test_replacing_with_a_delay_is_a_debounce(self, bus: Harness) -> None:
        for number in range(3):
            replace = Unique(on_conflict="replace")
            bus.send(DOMAIN, "index", number, unique_key="k", delay=10, unique=replace)
            bus.advance(6)
        worker = bus.worker()
        assert bus.receive(worker) == []
        bus.advance(6)
        assert bus.take(worker).command.data == 2
        assert bus.stats().canceled == 2

    @pytest.mark.parametrize(
        "unique",
        [
            Unique(window=-1),
            Unique(window=0),
            Unique(states=()),
            Unique(states=("COMPLETED",)),
            Unique(states=("never",)),
            Unique(on_conflict="explode"),
        ],
    )
    def test_bad_options_are_refused(self, bus: Harness, unique: Unique) -> None:
        with pytest.raises(InvalidArgumentError):
            bus.send(unique_key="k", unique=unique)
        with pytest.raises(InvalidArgumentError, match="unique_key"):
            bus.send(unique=Unique())
