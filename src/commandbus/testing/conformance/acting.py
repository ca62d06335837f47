"""Operator actions: record and ledger link are part of the action, in the name of its actor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.schedule import Schedule
from commandbus.errors import BusinessRuleException, CommandBusError, PermanentCommandError
from commandbus.operations.ledger import ACTION, HEAD
from commandbus.store.documents import Document
from commandbus.store.op import Op
from commandbus.testing.conformance.helpers import complete, park, registry_of, require
from commandbus.testing.conformance.transactions import transaction
from commandbus.testing.handlers import Gate
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.sagas import BookTrip, Sagas, Trip
from commandbus.worker.handlers import HandlerRegistry

WHY = "because"
NIGHTLY = Schedule(name="nightly", domain=DOMAIN, command_type="ship", every=3600.0)


class Case:
    """An action on something that `prepare` makes. `again` says what its repetition does: nothing, or
    raise; None for actions that do the same again."""

    def __init__(
        self, prepare: Callable[[Harness], Any], act: Callable[[Harness, Any], Any], again: str | None
    ) -> None:
        self.prepare, self.act, self.again = prepare, act, again


def nothing(bus: Harness) -> None:
    return


def parked(bus: Harness) -> Any:
    return park(bus, {"account": 42})


def waiting(bus: Harness) -> Any:
    return bus.send(delay=60)


def scheduled(bus: Harness) -> str:
    bus.call(bus.bus.put_schedule, NIGHTLY)
    return NIGHTLY.name


def edited(bus: Harness) -> HandlerRegistry:
    """A registry whose declared schedule an operator has edited."""
    registry = registry_of(ship=lambda command, context: None)
    registry.schedules[NIGHTLY.name] = NIGHTLY
    bus.call(bus.bus.put_schedule, msgspec.structs.replace(NIGHTLY, every=60.0))
    return registry


def disabled(bus: Harness) -> str:
    bus.call(bus.bus.disable_schedule, scheduled(bus))
    return NIGHTLY.name


def limited(bus: Harness) -> None:
    bus.call(bus.bus.set_limit, DOMAIN, per_sender=True, rate=5)


def paused(bus: Harness) -> None:
    bus.pause()


def opened(bus: Harness) -> None:
    bus.call(bus.bus.open_breaker, "bank")


def batched(bus: Harness) -> Any:
    return bus.call(bus.bus.create_batch, [SendRequest(DOMAIN, "ship")] * 3).batch_id


def ended(bus: Harness) -> None:
    complete(bus, data={"account": 42})
    bus.advance(60)


def started(bus: Harness) -> Any:
    return Sagas(bus, BookTrip).start()


def stuck(error: Exception) -> Callable[[Harness], Any]:
    """A process one of whose compensations has ended with this error."""

    def prepare(bus: Harness) -> Any:
        sagas = Sagas(bus, BookTrip)
        process_id = sagas.start()
        sagas.done("book_hotel", "Grand")
        sagas.done("book_car")
        sagas.done("pay", BusinessRuleException("NO_ROOM"))
        sagas.done("cancel_car", error)
        return process_id

    return prepare


def queue(method: str, *args: Any, **kwargs: Any) -> Callable[[Harness, Any], Any]:
    def act(bus: Harness, command_id: Any) -> Any:
        return bus.call(getattr(bus.troubleshooting, method), command_id, *args, **kwargs)

    return act


def of_bus(method: str, *args: Any, **kwargs: Any) -> Callable[[Harness, Any], Any]:
    """A method of the bus; what was prepared, if anything, is its first argument."""

    def act(bus: Harness, subject: Any) -> Any:
        first = () if subject is None else (subject,)
        return bus.call(getattr(bus.bus, method), *first, *args, reason=WHY, **kwargs)

    return act


ACTIONS: dict[str, Case] = {
    "operator_retry": Case(parked, queue("operator_retry", reason=WHY), "raise"),
    "operator_cancel": Case(parked, queue("operator_cancel", reason=WHY), "raise"),
    "operator_complete": Case(parked, queue("operator_complete", reason=WHY), "raise"),
    "comment": Case(parked, queue("comment", WHY), None),
    "assign": Case(parked, queue("assign", "ben"), None),
    "bulk": Case(
        parked,
        lambda bus, _: bus.call(bus.troubleshooting.bulk, "retry", domain=DOMAIN, reason=WHY),
        "nothing",
    ),
    "cancel": Case(waiting, lambda bus, one: bus.call(bus.bus.cancel, one, reason=WHY), "raise"),
    "pause": Case(nothing, of_bus("pause", DOMAIN), "nothing"),
    "resume": Case(paused, of_bus("resume", DOMAIN), "nothing"),
    "set_limit": Case(nothing, of_bus("set_limit", DOMAIN, per_sender=True, rate=5), "nothing"),
    "clear_limit": Case(limited, of_bus("clear_limit", DOMAIN, per_sender=True), "raise"),
    "put_schedule": Case(nothing, of_bus("put_schedule", NIGHTLY), "nothing"),
    "disable_schedule": Case(scheduled, of_bus("disable_schedule"), "nothing"),
    "enable_schedule": Case(disabled, of_bus("enable_schedule"), "nothing"),
    "trigger_schedule": Case(scheduled, of_bus("trigger_schedule"), None),
    "delete_schedule": Case(scheduled, of_bus("delete_schedule"), "nothing"),
    "declare": Case(edited, of_bus("declare", overwrite=True), "nothing"),
    "open_breaker": Case(nothing, of_bus("open_breaker", "bank"), None),
    "reset_breaker": Case(opened, of_bus("reset_breaker", "bank"), "nothing"),
    "cancel_batch": Case(
        batched,
        lambda bus, one: bus.call(bus.bus.cancel_batch, one, reason=WHY),
        "nothing",
    ),
    "cancel_process": Case(started, of_bus("cancel_process"), None),
    "end_process": Case(started, of_bus("end_process"), "raise"),
    "retry_process": Case(stuck(PermanentCommandError("BROKEN")), of_bus("retry_process"), "raise"),
    "skip_compensation": Case(stuck(BusinessRuleException("SOLD")), of_bus("skip_compensation"), None),
    "signal_process": Case(started, of_bus("signal_process", "paid"), None),
    "prune": Case(ended, of_bus("prune", {"COMPLETED": 1.0}), "nothing"),
    "purge": Case(ended, of_bus("purge", DOMAIN), "nothing"),
    "erase": Case(ended, of_bus("erase", data={"account": "42"}), "nothing"),
    "send": Case(nothing, lambda bus, _: bus.send(), None),
    "create_batch": Case(nothing, lambda bus, _: batched(bus), None),
    "create_process_batch": Case(
        nothing,
        lambda bus, _: bus.call(bus.manager_class(bus.bus, BookTrip).create_batch, [Trip()]),
        None,
    ),
    "start_process": Case(nothing, lambda bus, _: started(bus), None),
    "chain": Case(nothing, lambda bus, _: bus.call(bus.bus.chain, SendRequest(DOMAIN, "ship")), None),
}
WITHOUT_REASON = (
    "comment",
    "assign",
    "send",
    "create_batch",
    "create_process_batch",
    "start_process",
    "chain",
)

IN_TRAILS = (
    "operator_retry",
    "operator_cancel",
    "operator_complete",
    "comment",
    "assign",
    "bulk",
    "cancel",
)
"""Recorded in the trail of the command; the others are documents."""
FAILURES = [(name, HEAD) for name in ACTIONS]
FAILURES += [(name, ACTION) for name in ACTIONS if name not in IN_TRAILS]
"""What cannot be written: the link, or the record."""

every_action = pytest.mark.parametrize("name", ACTIONS)


class _Failing:
    """A store whose documents of one kind cannot be written."""

    def __init__(self, store: Any, kind: str) -> None:
        self._write, self._kind = store.put_document, kind

    def __call__(self, document: Document) -> Op[bool]:
        if document.kind == self._kind:
            raise OSError("the disk is full")
        written: Op[bool] = self._write(document)
        return written


@contextmanager
def failing(bus: Harness, kind: str) -> Iterator[None]:
    write = bus.store.put_document
    bus.store.put_document = _Failing(bus.store, kind)
    try:
        yield
    finally:
        bus.store.put_document = write


def records(bus: Harness) -> list[tuple[str | None, str, str | None]]:
    """Who did what and why: actions, and entries of operators in trails."""
    actions = list(bus.call(bus.bus.list_actions))
    entries = list(bus.call(bus.bus.search_audit))
    found = [(action.actor, action.action, action.reason) for action in actions]
    for entry in entries:
        details = entry.event.details
        who = details.get("actor")
        if who is not None:
            found.append((who, str(entry.event.event_type), details.get("reason")))
    return found


def tables(bus: Harness) -> list[Any]:
    """What an action could have changed."""
    return [
        list(bus.query(limit=50)),
        bus.call(bus.bus.list_schedules),
        bus.call(bus.bus.list_breakers),
        bus.call(bus.bus.list_limits),
        list(bus.call(bus.bus.list_processes)),
        bus.stats().paused,
        records(bus),
    ]


class ActingSuite:
    @every_action
    def test_an_action_leaves_its_record_and_link_in_the_name_of_its_actor(
        self, bus: Harness, name: str
    ) -> None:
        case = ACTIONS[name]
        subject = case.prepare(bus)
        before, links = records(bus), bus.call(bus.bus.verify_audit).links
        case.act(bus.acting("ada"), subject)
        new = [record for record in records(bus) if record not in before]
        assert new, "the action is on record"
        assert {who for who, _, _ in new} == {"ada"}
        if name not in WITHOUT_REASON:
            assert {why for _, _, why in new} <= {WHY, None}
            assert WHY in {why for _, _, why in new}
        report = bus.call(bus.bus.verify_audit)
        assert report.links > links
        assert report.problems == []

    @pytest.mark.parametrize(("name", "kind"), FAILURES)
    def test_an_action_whose_record_or_link_fails_did_nothing(
        self, bus: Harness, name: str, kind: str
    ) -> None:
        require(bus, "durable")  # only transactions can be rolled back
        case = ACTIONS[name]
        subject = case.prepare(bus)
        before = tables(bus)
        with failing(bus, kind), pytest.raises(OSError, match="disk is full"):
            case.act(bus.acting("ada"), subject)
        assert tables(bus) == before
        case.act(bus.acting("ada"), subject)
        assert bus.call(bus.bus.verify_audit).problems == []

    @pytest.mark.parametrize("name", [name for name, case in ACTIONS.items() if case.again])
    def test_an_action_that_changes_nothing_leaves_no_record(self, bus: Harness, name: str) -> None:
        case = ACTIONS[name]
        subject = case.prepare(bus)
        case.act(bus.acting("ada"), subject)
        before, links = records(bus), bus.call(bus.bus.verify_audit).links
        if case.again == "raise":
            with pytest.raises(CommandBusError):
                case.act(bus.acting("eve"), subject)
        else:
            case.act(bus.acting("eve"), subject)
        assert records(bus) == before
        assert bus.call(bus.bus.verify_audit).links == links

    def test_without_acting_the_actor_is_program(self, bus: Harness) -> None:
        bus.pause(DOMAIN, WHY)
        bus.cancel(bus.send(delay=60))
        assert {who for who, _, _ in records(bus)} == {"program"}

    def test_sends_and_signals_of_programs_are_not_operator_actions(self, bus: Harness) -> None:
        bus.send()
        bus.call(bus.bus.signal_process, started(bus), "paid")
        assert records(bus) == []

    def test_the_record_of_a_send_names_its_command_or_says_how_many(self, bus: Harness) -> None:
        command_id = bus.acting("ada").send()
        bus.call(bus.acting("ada").bus.send_many, [SendRequest(DOMAIN, "ship")] * 2)
        subjects = {action.subject for action in bus.call(bus.bus.list_actions)}
        assert subjects == {f"{DOMAIN} ship {command_id}", f"2 commands to {DOMAIN}"}

    def test_a_request_to_stop_is_recorded_once(self, bus: Harness) -> None:
        gate = Gate()
        with bus.run_worker(registry_of(ship=gate)):
            command_id = bus.send()
            gate.wait_for(1)
            for who in ("ada", "ben"):
                bus.call(bus.bus.acting(who).cancel, command_id, reason=WHY)
            asked = [record for record in records(bus) if record[1] == "cancel"]
            assert asked == [("ada", "cancel", WHY)]

    def test_an_action_within_a_callers_transaction_is_recorded_with_its_commit(
        self, bus: Harness
    ) -> None:
        for commit in (False, True):
            command_id = waiting(bus)
            with transaction(bus) as mine:
                within = bus.bus.acting("ada").within(mine.connection)
                bus.call(within.cancel, command_id, reason=WHY)
                mine.commit() if commit else mine.rollback()
            assert [who for who, _, _ in records(bus)] == (["ada"] if commit else [])

    def test_a_view_shares_everything_but_the_name(self, bus: Harness) -> None:
        ada = bus.acting("ada")
        command_id = bus.send(delay=60)
        assert ada.get(command_id) == bus.get(command_id)
        assert ada.bus.engine is bus.bus.engine
        assert bus.bus.scope.actor is None
        assert ada.acting("ben").bus.scope.actor == "ben"
