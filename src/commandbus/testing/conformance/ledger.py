"""The ledger: what operators did cannot be changed, removed or added behind their backs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from commandbus.domain.audit import AuditEventType
from commandbus.errors import InvalidArgumentError
from commandbus.operations.actions import record_action
from commandbus.operations.ledger import ACTION, HEAD, KIND, OPEN, link, link_open, of_action
from commandbus.operations.verification import verify_audit
from commandbus.store.documents import Document
from commandbus.store.op import Op
from commandbus.testing.conformance.helpers import complete, park, registry_of, together
from commandbus.testing.conformance.transactions import transaction
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually

DAMAGED = {
    "no JSON": "{",
    "another document": "[1]",
    "deep": '{"x":' * 5_000,
    "no link": '{"number":"one"}',
    "odd values": '{"number":7,"at":"2026-01-01T00:00:00Z","kind":"action","subject":"x y",'
    '"digest":"","previous":"","hash":"é","salt":"","seal":"é"}',
    "a time without a zone": '{"number":7,"at":"2026-01-01T00:00:00","kind":"CANCELED",'
    '"subject":"x","digest":"","previous":"","hash":"","salt":""}',
}
"""Bodies of links as another program may leave them."""


def verify(bus: Harness, **options: Any) -> Any:
    return bus.call(bus.bus.verify_audit, **options)


def found(bus: Harness) -> list[tuple[str, int | None]]:
    return [(problem.what, problem.number) for problem in verify(bus).problems]


def rewrite(bus: Harness, kind: str, key: str, old: str, new: str) -> None:
    """Change a document without a record."""
    document = bus.run(bus.store.get_document(kind, key))
    assert old in document.body
    changed = msgspec.structs.replace(document, body=document.body.replace(old, new))
    assert bus.run(bus.store.put_document(changed))


def replace(bus: Harness, kind: str, key: str, body: str) -> None:
    """The same with all of it."""
    document = bus.run(bus.store.get_document(kind, key))
    assert bus.run(bus.store.put_document(msgspec.structs.replace(document, body=body)))


def remove_ended(bus: Harness) -> None:
    """Delete canceled commands with their trails, past the operation that puts it on record."""
    bus.run(bus.store.prune({"CANCELED": 2**62}, 0, 100))


def record(bus: Harness, actor: str, reason: str | None = None) -> None:
    """An action that explains why trails are missing."""
    bus.run(record_action(bus.bus.acting(actor).scope, "prune", "all", reason))


def key_of(bus: Harness, kind: str, position: int) -> str:
    documents = bus.run(bus.store.list_documents(kind))
    return str(documents[position].key)


def verify_while(bus: Harness, step: int, act: Callable[[], None]) -> tuple[Any, int]:
    """A verification with an action after one of its steps; and how many steps it had."""
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
        bus.call(within.acting("ann").cancel, command_id)
        mine.commit() if commit else mine.rollback()


class LedgerSuite:
    def test_an_anchor_is_logged_when_its_link_is_committed(
        self, bus: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "commandbus.ledger")
        scope = bus.bus.scope

        def act(*, fails: bool) -> Op[None]:
            document = Document(ACTION, str(scope.new_id()), 0, "", None, "{}")
            yield from link(scope, [of_action(scope, bus.now, document)])
            if fails:
                raise RuntimeError("undone")

        with pytest.raises(RuntimeError, match="undone"):
            bus.run(act(fails=True))
        assert not caplog.messages
        bus.run(act(fails=False))
        (line,) = caplog.messages
        assert line.endswith(f": {verify(bus).hash}")

    def test_everything_that_operators_do_is_linked(self, bus: Harness) -> None:
        desk = bus.troubleshooting
        first, second, third = park(bus), park(bus), park(bus)
        bus.call(desk.acting("ann").comment, first, "hm")
        bus.call(desk.acting("ann").assign, first, "ben")
        bus.acting("ann").operator_retry(first)
        bus.acting("ann").operator_cancel(second)
        bus.acting("ann").operator_complete(third)
        bus.acting("ann").cancel(bus.send(delay=60))
        bus.call(bus.bus.acting("ann").pause, DOMAIN, "night")
        report = verify(bus)
        assert (report.links, report.problems) == (7, [])
        assert verify(bus, expect=report.hash).sound

    def test_ordinary_work_is_not_linked(self, bus: Harness) -> None:
        complete(bus)
        park(bus)
        assert verify(bus).links == 0
        assert bus.run(bus.store.get_document(HEAD, "head")) is None

    def test_of_many_operators_at_once_all_are_linked(self, bus: Harness) -> None:
        parked = [park(bus) for _ in range(6)]
        results = together(6, lambda n: bus.acting(f"operator {n}").operator_retry(parked[n]))
        assert results == [None] * 6
        report = verify(bus)
        assert (report.links, report.problems) == (6, [])

    def test_a_changed_action_or_link_is_found(self, bus: Harness) -> None:
        for reason in ("one", "two", "three"):
            record(bus, "ann", reason)
        rewrite(bus, ACTION, key_of(bus, ACTION, 1), "two", "six")
        assert found(bus) == [("changed", 2)]
        rewrite(bus, ACTION, key_of(bus, ACTION, 1), "six", "two")
        assert found(bus) == []
        rewrite(bus, KIND, key_of(bus, KIND, 0), '"kind":"action"', '"kind":"other"')
        assert ("changed", 1) in found(bus)

    def test_a_removed_action_or_link_is_found(self, bus: Harness) -> None:
        for _ in range(3):
            record(bus, "ann")
        first, last = key_of(bus, ACTION, 0), key_of(bus, KIND, 2)
        assert bus.run(bus.store.delete_document(ACTION, first))
        assert found(bus) == [("removed", 1)]
        assert bus.run(bus.store.delete_document(KIND, last))
        problems = found(bus)
        assert [number for what, number in problems if what == "removed"] == [1, 3]
        assert ("inserted", None) in problems

    def test_an_inserted_entry_is_found(self, bus: Harness) -> None:
        command_id = park(bus)
        bus.acting("ann").operator_retry(command_id)
        forged = {"actor": "ann", "text": "I allowed it"}
        bus.run(bus.store.note(DOMAIN, command_id, AuditEventType.COMMENTED, forged))
        (problem,) = verify(bus).problems
        assert (problem.what, problem.number) == ("inserted", None)
        assert f"COMMENTED of {DOMAIN} {command_id}" in problem.entry

    def test_a_chain_that_was_made_again_lacks_the_hash_that_was_kept(self, bus: Harness) -> None:
        record(bus, "ann")
        kept = verify(bus).hash
        bus.run(bus.store.delete_document(KIND, key_of(bus, KIND, 0)))
        bus.run(bus.store.delete_document(ACTION, key_of(bus, ACTION, 0)))
        bus.run(bus.store.delete_document(HEAD, "head"))
        record(bus, "ben")
        # Without the kept hash, only a store with a mark out of the writer's reach finds it.
        assert verify(bus).sound is (bus.run(bus.store.ledger_mark()) is None)
        assert not verify(bus, expect=kept).sound
        with pytest.raises(InvalidArgumentError, match="hash"):
            verify(bus, expect="42")

    def test_what_was_erased_or_forgotten_in_order_is_no_problem(self, bus: Harness) -> None:
        erased, kept = park(bus, {"account": 42}), park(bus, {"account": 43})
        for command_id in (erased, kept):
            bus.acting("ann").operator_cancel(command_id, "the customer left")
        bus.call(bus.bus.acting("ann").erase, data={"account": "42"}, reason="asked")
        report = verify(bus)
        assert (report.problems, report.erased, report.forgotten) == ([], 1, 0)
        bus.advance(10)
        bus.call(bus.bus.prune, {"CANCELED": 1.0})
        report = verify(bus)
        assert (report.problems, report.forgotten) == ([], 3)

    def test_a_prune_does_not_explain_a_trail_that_it_did_not_remove(self, bus: Harness) -> None:
        removed = park(bus)
        bus.acting("ann").operator_cancel(removed)
        remove_ended(bus)
        bus.acting("ann").operator_cancel(park(bus))
        bus.advance(10)
        assert bus.call(bus.bus.prune, {"CANCELED": 1.0}).gone == 1
        bus.run(record_action(bus.bus.acting("ann").scope, "purge", "everything"))
        report = verify(bus)
        assert [problem.what for problem in report.problems] == ["removed"]
        assert f"OPERATOR_CANCEL of {DOMAIN} {removed}" in report.problems[0].entry
        assert report.forgotten == 1

    def test_a_purge_explains_its_own_domain_only(self, bus: Harness) -> None:
        here, there = park(bus), bus.send(delay=60, domain="elsewhere")
        bus.acting("ann").operator_cancel(here)
        bus.acting("ann").cancel(there, domain="elsewhere")
        bus.call(bus.bus.acting("ann").purge, DOMAIN)
        assert (verify(bus).problems, verify(bus).forgotten) == ([], 1)
        remove_ended(bus)
        assert [problem.what for problem in verify(bus).problems] == ["removed"]

    def test_an_id_that_is_sent_again_after_a_prune_is_no_problem(self, bus: Harness) -> None:
        command_id = bus.send(delay=60)
        bus.acting("ann").cancel(command_id)
        bus.advance(10)
        assert bus.call(bus.bus.prune, {"CANCELED": 1.0}).gone == 1
        bus.send(command_id=command_id)
        assert (verify(bus).problems, verify(bus).forgotten) == ([], 1)

    @pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
    def test_a_damaged_head_is_reported_and_stops_no_action(self, bus: Harness, body: str) -> None:
        bus.call(bus.bus.acting("ann").pause, DOMAIN)
        replace(bus, HEAD, "head", body)
        (problem,) = verify(bus).problems
        assert (problem.what, "head" in problem.entry) == ("changed", True)
        bus.call(bus.bus.acting("ann").resume, DOMAIN)
        report = verify(bus)
        assert (report.links, report.problems) == (2, [])

    @pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_a_damaged_link_is_reported_and_stops_no_action(
        self, bus: Harness, body: str, position: int
    ) -> None:
        for reason in ("one", "two", "three"):
            bus.call(bus.bus.acting("ann").pause, DOMAIN, reason)
        replace(bus, KIND, key_of(bus, KIND, position), body)
        assert ("changed", position + 1) in found(bus)
        bus.call(bus.bus.acting("ann").resume, DOMAIN)
        assert verify(bus).links == 4
        assert {number for _, number in found(bus)} == {position + 1, None}, "its action has no link"

    @pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
    def test_a_damaged_link_of_a_callers_transaction_is_reported_and_the_others_are_linked(
        self, bus: Harness, body: str
    ) -> None:
        for _ in range(3):
            cancel_within(bus)
        replace(bus, OPEN, key_of(bus, OPEN, 1), body)
        assert bus.run(link_open(bus.bus.scope)) == 2
        assert bus.run(link_open(bus.bus.scope)) == 0
        report = verify(bus)
        assert (report.links, report.open) == (2, 0)
        assert sorted(problem.what for problem in report.problems) == ["changed", "inserted"]

    @pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
    def test_a_damaged_link_stops_no_erasure(self, bus: Harness, body: str) -> None:
        command_id = park(bus, {"account": 42})
        bus.acting("ann").operator_cancel(command_id)
        replace(bus, KIND, key_of(bus, KIND, 0), body)
        assert bus.call(bus.bus.acting("ann").erase, data={"account": "42"}, reason="asked").erased == 1

    def test_a_head_that_was_moved_back_leaves_a_gap(self, bus: Harness) -> None:
        for reason in ("one", "two", "three"):
            bus.call(bus.bus.acting("ann").pause, DOMAIN, reason)
        replace(bus, HEAD, "head", bus.run(bus.store.get_document(KIND, key_of(bus, KIND, 0))).body)
        bus.call(bus.bus.acting("ann").pause, DOMAIN)
        assert verify(bus).links == 4
        assert found(bus) == [("changed", 3)], "the last link does not build on the one before"

    def test_the_columns_beside_an_actions_body_mean_nothing(self, bus: Harness) -> None:
        command_id = park(bus)
        subject = f"{DOMAIN} {command_id}"
        bus.run(record_action(bus.bus.acting("ann").scope, "look", subject))
        document = bus.run(bus.store.get_document(ACTION, key_of(bus, ACTION, 0)))
        assert bus.run(bus.store.put_document(msgspec.structs.replace(document, status="cancel")))
        forged = {"actor": "ann", "reason": "x"}
        bus.run(bus.store.note(DOMAIN, command_id, AuditEventType.CANCELED, forged))
        assert [problem.what for problem in verify(bus).problems] == ["inserted"]

    def test_what_operators_do_during_a_verification_is_no_problem(self, bus: Harness) -> None:
        moment = count()

        def act() -> None:
            bus.call(bus.bus.acting("ann").pause, DOMAIN, f"look {next(moment)}")
            bus.call(bus.troubleshooting.acting("ben").comment, command_id, "hm")

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
            bus.acting("ann").operator_cancel(park(bus, {"step": step}), "the customer left")

        def erase(step: int) -> None:
            bus.call(bus.bus.acting("ann").erase, data={"step": str(step)}, reason="asked")

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

    def test_of_many_concurrent_linkers_one_links_what_callers_left(self, bus: Harness) -> None:
        for _ in range(3):
            cancel_within(bus)
        scope = bus.bus.scope
        assert not [e for e in together(4, lambda _: bus.run(link_open(scope))) if e not in (0, 3)]
        report = verify(bus)
        assert (report.links, report.open, report.problems) == (3, 0, [])

    def test_what_is_erased_before_it_is_linked_is_no_problem(self, bus: Harness) -> None:
        cancel_within(bus, data={"account": 42})
        bus.call(bus.bus.acting("ann").erase, data={"account": "42"}, reason="asked")
        bus.run(link_open(bus.bus.scope))
        report = verify(bus)
        assert (report.problems, report.erased, report.open) == ([], 1, 0)
