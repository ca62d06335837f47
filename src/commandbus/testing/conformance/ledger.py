"""The ledger: what operators did cannot be changed, removed or added behind their backs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from commandbus.domain.audit import AuditEventType
from commandbus.errors import InvalidArgumentError
from commandbus.operations.ledger import ACTION, HEAD, KIND, link_open, verify_audit
from commandbus.testing.conformance.helpers import complete, park, registry_of, together
from commandbus.testing.conformance.transactions import transaction
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually


def verify(bus: Harness, **options: Any) -> Any:
    return bus.call(bus.bus.verify_audit, **options)


def found(bus: Harness) -> list[tuple[str, int | None]]:
    return [(problem.what, problem.number) for problem in verify(bus).problems]


def rewrite(bus: Harness, kind: str, key: str, old: str, new: str) -> None:
    """Change a document behind everybody's back."""
    document = bus.run(bus.store.get_document(kind, key))
    assert old in document.body
    changed = msgspec.structs.replace(document, body=document.body.replace(old, new))
    assert bus.run(bus.store.put_document(changed))


def key_of(bus: Harness, kind: str, position: int) -> str:
    documents = bus.run(bus.store.list_documents(kind))
    return str(documents[position].key)


def verify_while(bus: Harness, step: int, act: Callable[[], None]) -> tuple[Any, int]:
    """A verification in which somebody acts after one of its steps; and how many steps it had."""
    flow: Any = verify_audit(bus.bus.scope)
    answer, taken = None, 0
    while True:
        try:
            answer = bus.run(flow.send(answer))
        except StopIteration as done:
            return done.value, taken
        if taken == step:
            act()
        taken += 1


def cancel_within(bus: Harness, commit: bool = True, **options: Any) -> None:
    """An operator cancels a command in a caller's transaction."""
    command_id = bus.send(delay=60, **options)
    with transaction(bus) as mine:
        within = bus.bus.within(mine.connection)
        bus.call(within.cancel, DOMAIN, command_id, actor="ann")
        mine.commit() if commit else mine.rollback()


class LedgerSuite:
    def test_everything_that_operators_do_is_linked(self, bus: Harness) -> None:
        desk = bus.troubleshooting
        first, second, third = park(bus), park(bus), park(bus)
        bus.call(desk.comment, DOMAIN, first, "hm", operator="ann")
        bus.call(desk.assign, DOMAIN, first, "ben", operator="ann")
        bus.operator_retry(first, operator="ann")
        bus.operator_cancel(second, operator="ann")
        bus.operator_complete(third, operator="ann")
        bus.cancel(bus.send(delay=60), actor="ann")
        bus.call(bus.bus.pause, DOMAIN, "night", actor="ann")
        report = verify(bus)
        assert (report.links, report.problems) == (7, [])
        assert verify(bus, expect=report.hash).sound

    def test_ordinary_work_is_not_linked(self, bus: Harness) -> None:
        complete(bus)
        park(bus)
        bus.cancel(bus.send(delay=60))
        assert verify(bus).links == 0
        assert bus.run(bus.store.get_document(HEAD, "head")) is None

    def test_of_many_operators_at_once_all_are_linked(self, bus: Harness) -> None:
        parked = [park(bus) for _ in range(6)]
        results = together(6, lambda n: bus.operator_retry(parked[n], operator=f"operator {n}"))
        assert results == [None] * 6
        report = verify(bus)
        assert (report.links, report.problems) == (6, [])

    def test_a_changed_action_or_link_is_found(self, bus: Harness) -> None:
        for reason in ("one", "two", "three"):
            bus.call(bus.bus.record_action, "ann", "prune", "all", reason)
        rewrite(bus, ACTION, key_of(bus, ACTION, 1), "two", "six")
        assert found(bus) == [("changed", 2)]
        rewrite(bus, ACTION, key_of(bus, ACTION, 1), "six", "two")
        assert found(bus) == []
        rewrite(bus, KIND, key_of(bus, KIND, 0), '"kind":"action"', '"kind":"other"')
        assert ("changed", 1) in found(bus)

    def test_a_removed_action_or_link_is_found(self, bus: Harness) -> None:
        for _ in range(3):
            bus.call(bus.bus.record_action, "ann", "prune", "all")
        first, last = key_of(bus, ACTION, 0), key_of(bus, KIND, 2)
        assert bus.run(bus.store.delete_document(ACTION, first))
        assert found(bus) == [("removed", 1)]
        assert bus.run(bus.store.delete_document(KIND, last))
        problems = found(bus)
        assert ("removed", 3) in problems
        assert ("inserted", None) in problems

    def test_an_inserted_entry_is_found(self, bus: Harness) -> None:
        command_id = park(bus)
        bus.operator_retry(command_id, operator="ann")
        forged = {"operator": "ann", "text": "I allowed it"}
        bus.run(bus.store.note(DOMAIN, command_id, AuditEventType.COMMENTED, forged))
        (problem,) = verify(bus).problems
        assert (problem.what, problem.number) == ("inserted", None)
        assert f"COMMENTED of {DOMAIN} {command_id}" in problem.entry

    def test_a_chain_that_was_made_anew_lacks_the_hash_that_was_kept(self, bus: Harness) -> None:
        bus.call(bus.bus.record_action, "ann", "prune", "all")
        kept = verify(bus).hash
        bus.run(bus.store.delete_document(KIND, key_of(bus, KIND, 0)))
        bus.run(bus.store.delete_document(ACTION, key_of(bus, ACTION, 0)))
        bus.run(bus.store.delete_document(HEAD, "head"))
        bus.call(bus.bus.record_action, "ben", "prune", "all")
        assert verify(bus).sound
        assert not verify(bus, expect=kept).sound
        with pytest.raises(InvalidArgumentError, match="hash"):
            verify(bus, expect="42")

    def test_what_was_erased_or_forgotten_in_order_is_no_problem(self, bus: Harness) -> None:
        erased, kept = park(bus, {"account": 42}), park(bus, {"account": 43})
        for command_id in (erased, kept):
            bus.operator_cancel(command_id, "the customer left", operator="ann")
        bus.call(bus.bus.erase, data={"account": "42"}, operator="ann", reason="asked")
        report = verify(bus)
        assert (report.problems, report.erased, report.forgotten) == ([], 1, 0)
        bus.advance(10)
        bus.call(bus.bus.prune, {"CANCELED": 1.0})
        bus.call(bus.bus.record_action, "ann", "prune", "all")
        report = verify(bus)
        assert report.forgotten == 3
        assert [problem.what for problem in report.problems] == []

    def test_what_operators_do_during_a_verification_is_no_problem(self, bus: Harness) -> None:
        def act() -> None:
            bus.call(bus.bus.pause, DOMAIN, actor="ann")
            bus.call(bus.troubleshooting.comment, DOMAIN, command_id, "hm", operator="ben")

        command_id = park(bus)
        act()
        _, steps = verify_while(bus, -1, act)
        assert steps > 5
        for left in range(steps):
            # Each time the chain is longer; the steps after it are as many as before.
            _, taken = verify_while(bus, -1, act)
            report, _ = verify_while(bus, taken - 1 - left, act)
            assert report.problems == []
        assert (verify(bus).links, verify(bus).problems) == (2 * steps + 2, [])

    def test_an_erasure_during_a_verification_is_no_problem(self, bus: Harness) -> None:
        def prepare(step: int) -> None:
            bus.operator_cancel(park(bus, {"step": step}), "the customer left", operator="ann")

        def erase(step: int) -> None:
            bus.call(bus.bus.erase, data={"step": str(step)}, operator="ann", reason="asked")

        steps = 8
        for step in range(steps):
            prepare(step)
        for step in range(steps):
            report, _ = verify_while(bus, step, lambda step=step: erase(step))  # type: ignore[misc]
            assert report.problems == []
        report = verify(bus)
        assert (report.problems, report.erased) == ([], steps)

    def test_what_is_done_in_a_callers_transaction_is_linked_after_the_commit(
        self, bus: Harness
    ) -> None:
        cancel_within(bus, commit=False)
        assert verify(bus).open == 0
        cancel_within(bus)
        report = verify(bus)
        assert (report.links, report.open, report.problems) == (0, 1, [])
        with bus.run_worker(registry_of(ship=Recorder())):
            eventually(lambda: verify(bus).open == 0)
        report = verify(bus)
        assert (report.links, report.problems) == (1, [])

    def test_of_many_who_link_what_callers_left_one_does(self, bus: Harness) -> None:
        for _ in range(3):
            cancel_within(bus)
        scope = bus.bus.scope
        assert not [e for e in together(4, lambda _: bus.run(link_open(scope))) if e not in (0, 3)]
        report = verify(bus)
        assert (report.links, report.open, report.problems) == (3, 0, [])

    def test_what_is_erased_before_it_is_linked_is_no_problem(self, bus: Harness) -> None:
        cancel_within(bus, data={"account": 42})
        bus.call(bus.bus.erase, data={"account": "42"}, operator="ann", reason="asked")
        bus.run(link_open(bus.bus.scope))
        report = verify(bus)
        assert (report.problems, report.erased, report.open) == ([], 1, 0)
