"""Retention and history: what ended is forgotten in time, and what was counted is not."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from commandbus.domain.command import SendRequest
from commandbus.errors import BusinessRuleException, InvalidArgumentError
from commandbus.operations.batch_documents import batch_document, decode_batch
from commandbus.operations.batches import close_batches
from commandbus.operations.history import record_history, take_samples, take_turn
from commandbus.operations.retention import PIECE
from commandbus.testing.conformance.helpers import complete, park
from commandbus.testing.harness import DOMAIN, Harness

HOUR = 3_600.0


def age_batch(bus: Harness, batch_id: UUID) -> None:
    """Make a batch look complete for two hours; the clocks of some stores cannot be moved."""
    document = bus.run(bus.store.get_document("batch", str(batch_id)))
    body = decode_batch(document)
    body.completed_at = int((bus.now.timestamp() - 2 * HOUR) * 1e6)
    assert bus.run(bus.store.put_document(batch_document(batch_id, document.version, body)))


class RetentionSuite:
    def test_what_ended_long_ago_is_forgotten_by_status(self, bus: Harness) -> None:
        worker = bus.worker()
        old = complete(bus)
        failed = bus.send()
        bus.call(worker.fail, bus.take(worker), BusinessRuleException("NO"))
        canceled = bus.send()
        bus.cancel(canceled)
        parked = park(bus)
        waiting = bus.send(delay=10 * HOUR)
        bus.advance(2 * HOUR)
        new = complete(bus)
        keep = {"COMPLETED": HOUR, "canceled": HOUR}
        assert bus.call(bus.bus.prune, keep, preview=True).gone == 2
        assert bus.kinds(old) != []
        assert bus.kinds(canceled) != []
        seen: list[int] = []
        report = bus.call(bus.bus.prune, keep, progress=seen.append)
        assert report.gone == 2
        assert seen == [2]
        assert bus.find(old) is None
        assert bus.find(canceled) is None
        assert bus.kinds(old) == []
        for kept in (failed, parked, waiting, new):
            assert bus.find(kept) is not None
        assert bus.call(bus.bus.prune, {"COMPLETED": HOUR}).gone == 0

    def test_what_was_counted_stays_counted(self, bus: Harness) -> None:
        complete(bus)
        before = bus.stats()
        bus.advance(2 * HOUR)
        assert bus.call(bus.bus.prune, {"COMPLETED": HOUR}).gone == 1
        assert bus.stats().completed == before.completed == 1

    def test_members_of_a_batch_stay_as_long_as_the_batch(self, bus: Harness) -> None:
        both = [SendRequest(DOMAIN, "ship"), SendRequest(DOMAIN, "ship", delay=HOUR)]
        batch = bus.call(bus.bus.create_batch, both)
        worker = bus.worker()
        bus.call(worker.complete, bus.take(worker))
        bus.advance(2 * HOUR)
        assert bus.call(bus.bus.prune, {"COMPLETED": HOUR}).gone == 0, "the batch is open"
        bus.call(worker.complete, bus.take(worker))
        bus.run(close_batches(bus.bus.scope, [batch.batch_id]))
        assert bus.call(bus.bus.get_batch, batch).status == "COMPLETED"
        assert bus.call(bus.bus.prune, {"COMPLETED": HOUR}).gone == 0, "it has just completed"
        bus.advance(2 * HOUR)
        age_batch(bus, batch.batch_id)
        assert bus.call(bus.bus.prune, {"COMPLETED": HOUR}).gone == 2

    def test_many_go_in_pieces(self, bus: Harness) -> None:
        count = PIECE + 20
        bus.send_many([SendRequest(DOMAIN, "ship")] * count)
        worker = bus.worker()
        batch = bus.receive(worker, count)
        for received in batch[:3]:
            bus.call(worker.complete, received)
        for received in batch[3:]:
            bus.call(worker.fail, received, BusinessRuleException("NO"))
        bus.advance(2 * HOUR)
        assert bus.call(bus.bus.prune, {"FAILED": HOUR}).gone == len(batch) - 3
        assert [record.status for record in bus.query(limit=10)] == ["COMPLETED"] * 3

    @pytest.mark.parametrize("keep", [{}, {"PENDING": 60}, {"IN_TROUBLESHOOTING_QUEUE": 60}])
    def test_only_what_ended_can_be_forgotten(self, bus: Harness, keep: dict[str, float]) -> None:
        with pytest.raises(InvalidArgumentError):
            bus.call(bus.bus.prune, keep)

    def test_an_id_that_was_forgotten_can_be_used_again(self, bus: Harness) -> None:
        command_id = complete(bus)
        bus.advance(2 * HOUR)
        bus.call(bus.bus.prune, {"COMPLETED": HOUR})
        assert bus.send(command_id=command_id) == command_id


def needs_a_clock(bus: Harness) -> None:
    """Samples hold moments of the store's clock, which stay what they are when rows are aged."""
    if bus.configuration.clock is None:
        pytest.skip(f"the clock of {bus.configuration.name} cannot be moved")


class HistorySuite:
    def test_samples_outlive_the_commands_they_count(self, bus: Harness) -> None:
        needs_a_clock(bus)
        begin = bus.now - timedelta(minutes=1)
        complete(bus)
        assert bus.run(record_history(bus.bus.scope)) == 2
        assert bus.run(record_history(bus.bus.scope)) == 0
        bus.advance(61)
        complete(bus)
        park(bus)
        bus.run(record_history(bus.bus.scope))
        bus.call(bus.bus.prune, {"COMPLETED": 1.0})
        (history,) = bus.call(bus.bus.get_history, begin - timedelta(minutes=5))
        assert history.domain == DOMAIN
        assert [sample.completed for sample in history.samples] == [1, 2]
        assert [sample.parked for sample in history.samples] == [0, 1]
        assert history.samples[-1].run_p95 is not None

    def test_the_samples_of_a_minute_are_one_processs_to_take(self, bus: Harness) -> None:
        needs_a_clock(bus)
        assert bus.run(take_turn(bus.bus.scope))
        assert not bus.run(take_turn(bus.bus.scope))
        bus.advance(61)
        assert bus.run(take_turn(bus.bus.scope))

    def test_a_domain_may_be_asked_for_alone(self, bus: Harness) -> None:
        bus.send("orders")
        bus.send("billing")
        bus.run(record_history(bus.bus.scope))
        found = bus.call(bus.bus.get_history, bus.now - timedelta(hours=1), domain="billing")
        assert [(h.domain, h.samples[0].ready) for h in found] == [("billing", 1)]

    def test_hours_are_kept_when_minutes_are_gone(self, bus: Harness) -> None:
        needs_a_clock(bus)
        bus.send()
        bus.run(record_history(bus.bus.scope))
        bus.advance(3 * 86_400)
        bus.run(record_history(bus.bus.scope))
        since = bus.now - timedelta(days=7)
        (minutes,) = bus.call(bus.bus.get_history, since)
        (hours,) = bus.call(bus.bus.get_history, since, grain="hour")
        assert len(minutes.samples) == 1
        assert len(hours.samples) == 2

    def test_what_an_operator_sent_back_did_not_wait_while_it_was_parked(self, bus: Harness) -> None:
        parked = park(bus)
        bus.advance(HOUR)
        bus.operator_retry(parked)
        worker = bus.worker()
        bus.call(worker.complete, bus.take(worker))
        (history,) = bus.run(take_samples(bus.bus.scope))
        waited = history.samples[0].wait_p95
        assert waited is not None
        assert waited < HOUR / 2

    def test_a_sample_counts_what_is_there(self, bus: Harness) -> None:
        complete(bus)
        park(bus)
        bus.send(delay=HOUR)
        bus.run(record_history(bus.bus.scope))
        bus.call(bus.bus.prune, {"COMPLETED": 1.0})
        (history,) = bus.call(bus.bus.get_history, bus.now - timedelta(hours=1))
        (sample,) = history.samples
        counts = (sample.ready, sample.scheduled, sample.running, sample.parked, sample.completed)
        assert counts == (0, 1, 0, 1, 1)
        assert sample.run_p95 is not None


class SearchSuite:
    def test_events_of_all_commands_newest_first(self, bus: Harness) -> None:
        first, second = park(bus), park(bus)
        page = bus.call(bus.bus.search_audit)
        kinds = [(e.event.event_type, e.event.command_id) for e in page]
        assert kinds == [("MOVED_TO_TSQ", second), ("MOVED_TO_TSQ", first)]
        bus.operator_retry(first)
        found = bus.call(bus.bus.search_audit, event_type="OPERATOR_RETRY")
        assert [e.event.command_id for e in found] == [first]
        assert not bus.call(bus.bus.search_audit, domain="nowhere")
        with pytest.raises(InvalidArgumentError):
            bus.call(bus.bus.search_audit, event_type="NONSENSE")

    def test_pages_of_events(self, bus: Harness) -> None:
        ids = [park(bus) for _ in range(5)]
        page = bus.call(bus.bus.search_audit, limit=2)
        seen = [e.event.command_id for e in page]
        while page.next is not None:
            page = bus.call(bus.bus.search_audit, limit=2, after=page.next)
            seen += [e.event.command_id for e in page]
        assert seen == ids[::-1]

    def test_people_are_named_with_what_they_did(self, bus: Harness) -> None:
        bus.call(bus.bus.acting("ana").pause, "orders", "stocktaking")
        bus.call(bus.bus.acting("ben").resume, "orders")
        bus.call(bus.bus.acting("ana").open_breaker, "bank", 60)
        page = bus.call(bus.bus.list_actions)
        actions = [(a.actor, a.action, a.subject, a.reason) for a in page]
        assert actions == [
            ("ana", "open_breaker", "bank", None),
            ("ben", "resume", "orders", None),
            ("ana", "pause", "orders", "stocktaking"),
        ]

    def test_by_error_and_by_payload(self, bus: Harness) -> None:
        bus.send(data={"account": 41, "open": True, "owner": {"city": "Oslo"}})
        wanted = bus.send(data={"account": 42, "open": False, "owner": {"city": "Graz"}})
        for data in ({"account": "42"}, {"owner.city": "Graz"}, {"open": "false"}):
            assert [r.command_id for r in bus.query(data=data)] == [wanted], data
        assert len(bus.query(data={"account.owner": "x"})) == 0
        with pytest.raises(InvalidArgumentError):
            bus.query(data={"a'b": "x"})

    def test_a_bounded_look_goes_on_where_it_ended(self, bus: Harness) -> None:
        first = bus.send(command_type="rare")
        bus.send_many([SendRequest(DOMAIN, "ship")] * 30)
        page = bus.query(command_type="rare", scan=10)
        looks = 1
        while not page and page.next is not None:
            page = bus.query(command_type="rare", scan=10, after=page.next)
            looks += 1
        assert [r.command_id for r in page] == [first]
        assert looks == 4
        newest = bus.get(bus.send()).sequence
        assert bus.query(command_type="none", scan=newest - 1).next == "2"
        assert bus.query(command_type="none", scan=newest).next is None

    def test_waiting_commands_are_counted_no_further_than_the_cap(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 30)
        capped = bus.call(bus.bus.stats, DOMAIN, cap=10)
        assert capped.ready in (10, 30)
        assert bus.stats().ready == 30
