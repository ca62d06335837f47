"""The ledger: what operators did cannot be changed, removed or added behind their backs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from commandbus.domain.audit import AuditEventType
from commandbus.errors import InvalidArgumentError
from commandbus.operations.ledger import ACTION, HEAD, KIND
from commandbus.testing.conformance.helpers import complete, park, together
from commandbus.testing.harness import DOMAIN, Harness


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
