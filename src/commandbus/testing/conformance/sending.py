"""Sending: what is accepted is there, exactly as sent, all of it or nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import (
    DuplicateCommandError,
    InvalidArgumentError,
    InvalidOperationError,
    NotOpen,
    PayloadError,
)
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.forms import BothForms
from commandbus.testing.conformance.helpers import about, registry_of, require
from commandbus.testing.harness import DOMAIN, Harness


class SendingSuite(BothForms):
    def test_a_sent_command_is_pending_with_its_data(self, bus: Harness) -> None:
        record = bus.get(bus.send(DOMAIN, "ship", {"article": 7}))
        assert record.status is CommandStatus.PENDING
        assert (record.domain, record.command_type) == (DOMAIN, "ship")
        assert record.data == {"article": 7}

    def test_send_returns_the_new_id_and_the_domain(self, bus: Harness) -> None:
        result = bus.send_result(DOMAIN, "ship")
        assert isinstance(result.command_id, UUID)
        assert (result.domain, result.duplicate) == (DOMAIN, False)

    @pytest.mark.parametrize("as_given", [UUID, str])
    def test_a_given_id_is_the_id_of_the_command(self, bus: Harness, as_given: type) -> None:
        wanted = uuid4()
        assert bus.send(command_id=as_given(str(wanted))) == wanted
        assert bus.get(wanted).command_id == wanted

    def test_an_idempotency_key_stands_for_one_command_of_a_domain(self, bus: Harness) -> None:
        first = bus.send(idempotency_key="order-7-charge")
        with pytest.raises(DuplicateCommandError) as caught:
            bus.send(idempotency_key="order-7-charge")
        assert caught.value.command_id == first
        assert "another idempotency_key" in str(caught.value)
        many = [SendRequest(DOMAIN, "ship", idempotency_key=key) for key in ("new", "order-7-charge")]
        with pytest.raises(DuplicateCommandError):
            bus.send_many(many)
        assert bus.send("billing", "ship", idempotency_key="order-7-charge") != first
        assert bus.send(idempotency_key="order-8-charge") != first
        assert bus.stats().depth == 2

    @pytest.mark.parametrize("key", ["", "a" * 256, "line\nbreak", 7])
    def test_an_invalid_idempotency_key_is_refused(self, bus: Harness, key: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="idempotency_key must be printable text"):
            bus.send(idempotency_key=key)

    def test_an_id_and_an_idempotency_key_exclude_each_other(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="either command_id or idempotency_key"):
            bus.send(command_id=uuid4(), idempotency_key="k")

    def test_what_was_sent_is_counted_by_type_once_for_each_command(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", unique_key="one")
        assert bus.send_result(DOMAIN, "ship", unique_key="one").duplicate
        requests = [SendRequest(DOMAIN, "ship"), SendRequest(DOMAIN, "ship", unique_key="one")]
        bus.send_many([*requests, SendRequest("billing", "charge")])
        with pytest.raises(DuplicateCommandError):
            bus.send(DOMAIN, "ship", command_id=bus.send(DOMAIN, "weigh"))
        counted = {(DOMAIN, "ship"): 2, (DOMAIN, "weigh"): 1, ("billing", "charge"): 1}
        assert bus.bus.scope.sent.counts() == counted

    def test_data_may_be_left_out(self, bus: Harness) -> None:
        assert bus.get(bus.send()).data is None

    def test_the_correlation_id_is_the_command_id_unless_given(self, bus: Harness) -> None:
        alone, given = bus.send(), uuid4()
        assert bus.get(alone).correlation_id == alone
        assert bus.get(bus.send(correlation_id=given)).correlation_id == given

    def test_causation_and_reply_address_are_kept(self, bus: Harness) -> None:
        cause = uuid4()
        record = bus.get(bus.send(causation_id=cause, reply_to="billing"))
        assert (record.causation_id, record.reply_to) == (cause, "billing")
        plain = bus.get(bus.send())
        assert (plain.causation_id, plain.reply_to) == (None, None)

    def test_tags_and_headers_are_kept(self, bus: Harness) -> None:
        headers = {"trace": "00-ab", "nested": {"n": 1}}
        record = bus.get(bus.send(tags=["vip", "berlin", "vip"], headers=headers))
        assert record.tags == ("vip", "berlin")
        assert record.headers == headers

    def test_a_request_keeps_the_tags_of_an_iterator_for_every_use(self, bus: Harness) -> None:
        require(bus, "gates")
        request = SendRequest(DOMAIN, "ship", tags=iter(["vip"]), requires=iter(["gpu"]))
        for sent in bus.send_many([request, request]):
            record = bus.get(sent.command_id)
            assert (record.tags, record.requires) == (("vip",), ("gpu",))

    def test_a_new_record_says_that_nothing_happened_yet(self, bus: Harness) -> None:
        record = bus.get(bus.send())
        assert (record.attempts, record.crashes) == (0, 0)
        assert (record.worker, record.started_at, record.finished_at) == (None, None, None)
        assert (record.result, record.error, record.reason, record.progress) == (None,) * 4
        assert record.error_code is None
        assert record.error_message is None

    def test_times_are_the_stores(self, bus: Harness) -> None:
        record = bus.get(bus.send())
        assert bus.seconds_until(record.created_at) == about(0)
        assert record.created_at.utcoffset() == timedelta(0)
        assert record.due_at == record.created_at

    def test_the_record_shows_the_attempts_that_the_bus_allows(self, open_bus: OpenBus) -> None:
        bus = open_bus(max_attempts=7)
        assert bus.get(bus.send()).max_attempts == 7
        assert bus.get(bus.send(max_attempts=2)).max_attempts == 2

    def test_a_command_is_not_found_under_another_id_or_domain(self, bus: Harness) -> None:
        command_id = bus.send()
        assert bus.find(uuid4()) is None
        assert bus.find(command_id, "billing") is None
        assert bus.find(str(command_id)) == bus.get(command_id)

    def test_sequences_and_new_ids_grow_in_order_of_sending(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(20)]
        sequences = [bus.get(command_id).sequence for command_id in ids]
        assert sequences == sorted(set(sequences))
        assert ids == sorted(set(ids))

    def test_bulk_results_come_in_the_order_of_the_requests(self, bus: Harness) -> None:
        ids = [uuid4() for _ in range(50)]
        results = bus.send_many(
            SendRequest(DOMAIN, "ship", n, command_id=command_id) for n, command_id in enumerate(ids)
        )
        assert [result.command_id for result in results] == ids
        assert [bus.get(command_id).data for command_id in ids] == list(range(50))

    def test_a_bulk_send_reaches_several_domains(self, bus: Harness) -> None:
        results = bus.send_many([SendRequest("orders", "ship"), SendRequest("billing", "charge")])
        assert [result.domain for result in results] == ["orders", "billing"]
        assert (bus.stats("orders").ready, bus.stats("billing").ready) == (1, 1)

    def test_an_empty_bulk_send_sends_nothing(self, bus: Harness) -> None:
        assert bus.send_many([]) == []
        assert len(bus.query()) == 0

    def test_a_bulk_send_with_an_id_twice_sends_nothing(self, bus: Harness) -> None:
        twice = uuid4()
        requests = [
            SendRequest(DOMAIN, "ship"),
            SendRequest(DOMAIN, "ship", command_id=twice),
            SendRequest(DOMAIN, "ship", command_id=twice),
        ]
        with pytest.raises(DuplicateCommandError) as caught:
            bus.send_many(requests)
        assert caught.value.command_id == twice
        assert len(bus.query()) == 0

    def test_a_bulk_send_with_a_known_id_sends_nothing(self, bus: Harness) -> None:
        known = bus.send()
        requests = [SendRequest("other", "ship"), SendRequest(DOMAIN, "ship", command_id=known)]
        with pytest.raises(DuplicateCommandError, match=str(known)):
            bus.send_many(requests)
        assert [record.command_id for record in bus.query()] == [known]
        assert bus.stats("other").depth == 0

    def test_a_bulk_send_with_a_bad_payload_sends_nothing(self, bus: Harness) -> None:
        requests = [SendRequest(DOMAIN, "ship"), SendRequest(DOMAIN, "ship", {"x": float("nan")})]
        with pytest.raises(PayloadError):
            bus.send_many(requests)
        assert len(bus.query()) == 0

    def test_a_bulk_send_of_thousands_is_whole(self, bus: Harness) -> None:
        results = bus.send_many(SendRequest(DOMAIN, "ship", n) for n in range(3_000))
        assert len({result.command_id for result in results}) == 3_000
        assert bus.stats().ready == 3_000

    def test_domains_that_were_sent_to_or_paused_are_listed(self, bus: Harness) -> None:
        bus.send("orders")
        bus.send("billing", delay=60)
        bus.pause("mail")
        domains = bus.call(bus.bus.list_domains)
        assert (list(domains), domains.next) == (["billing", "mail", "orders"], None)
        first = bus.call(bus.bus.list_domains, limit=2)
        assert (list(first), first.next) == (["billing", "mail"], "mail")
        assert list(bus.call(bus.bus.list_domains, limit=2, after=first.next)) == ["orders"]

    def test_purging_a_domain_forgets_it_alone(self, bus: Harness) -> None:
        gone, kept = bus.send("orders", unique_key="k"), bus.send("billing")
        bus.send("orders", delay=60)
        assert bus.call(bus.bus.purge, "orders").gone == 2
        assert bus.find(gone) is None
        assert bus.trail(gone) == []
        assert bus.find(kept, "billing") is not None
        assert not bus.send_result(DOMAIN, "ship", unique_key="k", command_id=gone).duplicate

    def test_purging_everything_leaves_nothing(self, bus: Harness) -> None:
        bus.send("orders")
        bus.send("billing")
        bus.take(bus.worker("billing"))
        assert bus.call(bus.bus.purge).gone == 2
        assert len(bus.query()) == 0
        assert bus.stats("billing").running == 0

    def test_a_closed_bus_accepts_nothing(self, bus: Harness) -> None:
        bus.call(bus.bus.close)
        with pytest.raises(InvalidOperationError, match="not open"):
            bus.send()

    def test_a_worker_does_not_begin_on_a_closed_bus(self, bus: Harness) -> None:
        worker = bus.worker(registry=registry_of(ship=lambda command, context: None))
        bus.call(bus.bus.close)
        with pytest.raises(NotOpen, match="not open; use it inside"):
            bus.call(worker.run)
