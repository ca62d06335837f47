"""Erasure: what the commands of a subject carried is gone everywhere, and that they were is not."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.unique import Unique
from commandbus.errors import BusinessRuleException, InvalidArgumentError
from commandbus.operations.batches import close_batches
from commandbus.operations.erasure import PIECE
from commandbus.testing.conformance.helpers import park
from commandbus.testing.harness import DOMAIN, Harness

SECRET = "Ada Lovelace"
MINE = {"account": 42, "name": SECRET}
OTHERS = {"account": 43, "name": "another person"}


def erase(bus: Harness, data: Any = None, **options: Any) -> Any:
    wanted = {"account": "42"} if data is None and not options.keys() & {"tag", "headers"} else data
    given = {"reason": "asked by letter"} | options
    return bus.call(bus.bus.acting("ann").erase, data=wanted, **given)


def run(bus: Harness, data: Any = None, **options: Any) -> UUID:
    """Send a command and complete it with a result that tells its payload."""
    command_id = bus.send(DOMAIN, "ship", data, **options)
    worker = bus.worker()
    bus.call(worker.complete, bus.take(worker), {"shipped_to": data})
    return command_id


def everything(bus: Harness, command_id: UUID, domain: str = DOMAIN) -> str:
    """Everything that is shown of a command, as text."""
    record, trail = bus.get(command_id, domain), bus.trail(command_id, domain)
    return msgspec.json.encode([record, trail]).decode()


class ErasureSuite:
    def test_what_a_command_carried_is_gone_and_that_it_was_is_not(self, bus: Harness) -> None:
        mine = run(bus, MINE, headers={"for": SECRET}, tags=[SECRET], unique_key=SECRET)
        other = run(bus, OTHERS)
        before = bus.get(mine)
        report = erase(bus)
        assert (report.erased, report.complete) == (1, True)
        after = bus.get(mine)
        assert SECRET not in everything(bus, mine)
        assert (after.data, after.result) == ({"erased": True}, {"erased": True})
        for kept in ("status", "created_at", "started_at", "finished_at", "attempts", "worker"):
            assert getattr(after, kept) == getattr(before, kept)
        last = bus.trail(mine)[-1]
        assert (last.event_type, last.details["actor"]) == ("ERASED", "ann")
        assert last.details["reason"] == "asked by letter"
        assert bus.get(other).data == OTHERS

    def test_the_key_of_a_window_is_erased_too(self, bus: Harness) -> None:
        run(bus, MINE, unique_key=SECRET, unique=Unique(window=3600))
        erase(bus)
        page = bus.run(bus.store.list_documents("unique"))
        assert SECRET not in str(page)

    def test_a_reason_in_capitals_is_erased_as_any_other(self, bus: Harness) -> None:
        mine = bus.send(DOMAIN, "ship", MINE)
        bus.cancel(mine, "LOVELACE")
        erase(bus)
        assert "LOVELACE" not in everything(bus, mine)

    def test_errors_and_edits_are_erased_from_the_trail(self, bus: Harness) -> None:
        command_id = park(bus, MINE)
        bus.call(bus.troubleshooting.acting("ben").comment, command_id, f"called {SECRET}")
        bus.acting("ben").operator_retry(command_id, data=MINE | {"zip": 1}, reason=f"for {SECRET}")
        worker = bus.worker()
        refusal = BusinessRuleException("NO", f"{SECRET} is unknown", details={"name": SECRET})
        bus.call(worker.fail, bus.take(worker), refusal)
        before = bus.kinds(command_id)
        assert erase(bus).erased == 1
        assert SECRET not in everything(bus, command_id)
        record = bus.get(command_id)
        assert (record.status, record.error_code) == (CommandStatus.FAILED, "NO")
        assert bus.kinds(command_id) == [*before, "ERASED"]
        retried = next(e for e in bus.trail(command_id) if e.event_type == "OPERATOR_RETRY")
        assert retried.details == {"actor": "ben", "reason": "erased", "erased": True}
        (case,) = bus.call(bus.troubleshooting.list_cases, [record])
        assert case.comment is None

    def test_what_has_not_ended_is_left_and_counted(self, bus: Harness) -> None:
        running = bus.send(DOMAIN, "ship", MINE)
        bus.take(bus.worker())
        waiting, parked = bus.send(DOMAIN, "ship", MINE, delay=60), None
        report = erase(bus)
        assert (report.erased, report.waiting, report.running) == (0, 1, 1)
        assert not report.complete
        for command_id in (running, waiting, parked):
            assert command_id is None or bus.get(command_id).data == MINE

    def test_what_waits_or_is_parked_may_be_canceled_first(self, bus: Harness) -> None:
        parked = park(bus, MINE)
        waiting = bus.send(DOMAIN, "ship", MINE, delay=60)
        report = erase(bus, cancel_waiting=True)
        assert (report.erased, report.canceled, report.complete) == (2, 2, True)
        for command_id in (parked, waiting):
            assert bus.get(command_id).status is CommandStatus.CANCELED
            assert SECRET not in everything(bus, command_id)

    def test_a_dry_run_changes_nothing(self, bus: Harness) -> None:
        command_id = run(bus, MINE)
        assert erase(bus, dry_run=True).erased == 1
        assert bus.get(command_id).data == MINE
        assert not bus.call(bus.bus.list_actions)

    def test_a_subject_is_found_by_header_or_tag_and_within_domains(self, bus: Harness) -> None:
        by_header = run(bus, MINE, headers={"customer": {"id": 42}})
        by_tag = run(bus, MINE, tags=["customer-42"])
        assert erase(bus, headers={"customer.id": "42"}, domains=["elsewhere"]).erased == 0
        assert erase(bus, headers={"customer.id": "42"}, domains=[DOMAIN]).erased == 1
        assert SECRET not in everything(bus, by_header)
        assert bus.get(by_tag).data == MINE
        assert erase(bus, tag="customer-42").erased == 1
        assert SECRET not in everything(bus, by_tag)

    def test_replies_are_erased_with_what_they_answer(self, bus: Harness) -> None:
        run(bus, MINE, reply_to="answers")
        (reply,) = bus.query(domain="answers")
        report = erase(bus)
        assert (report.erased, report.waiting) == (0, 1)
        worker = bus.worker("answers")
        bus.call(worker.complete, bus.take(worker))
        assert erase(bus).erased == 2
        assert SECRET not in everything(bus, reply.command_id, "answers")

    def test_a_batch_keeps_no_copy_of_its_completion(self, bus: Harness) -> None:
        ended = SendRequest("closing", "close", MINE)
        batch = bus.call(bus.bus.create_batch, [SendRequest(DOMAIN, "ship")], on_complete=ended)
        worker, closing = bus.worker(), bus.worker("closing")
        bus.call(worker.complete, bus.take(worker))
        bus.run(close_batches(bus.bus.scope, [batch.batch_id]))
        bus.call(closing.complete, bus.take(closing))
        assert erase(bus).erased == 1
        document = bus.run(bus.store.get_document("batch", str(batch.batch_id)))
        assert SECRET not in document.body

    def test_who_did_it_is_on_record_without_the_subject(self, bus: Harness) -> None:
        run(bus, MINE)
        erase(bus, {"name": SECRET})
        (action,) = bus.call(bus.bus.list_actions)
        assert (action.actor, action.action, action.reason) == ("ann", "erase", "asked by letter")
        assert action.subject == "by data.name in all domains"

    def test_many_go_in_pieces(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship", MINE) for _ in range(PIECE + 20)])
        report = erase(bus, cancel_waiting=True)
        assert (report.erased, report.canceled) == (PIECE + 20, PIECE + 20)
        assert erase(bus).erased == 0

    @pytest.mark.parametrize("wrong", [{"data": {}}, {"reason": ""}, {"domains": ["no good"]}])
    def test_an_unclear_erasure_is_refused(self, bus: Harness, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError):
            erase(bus, **({"data": {"account": "42"}} | wrong))
