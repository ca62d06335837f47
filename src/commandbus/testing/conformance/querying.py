"""Queries: filters that mean what they say, and pages that hold while commands arrive."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.ids import short_id
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import BusinessRuleException, InvalidArgumentError, InvalidOperationError
from commandbus.operations import lookup
from commandbus.testing.conformance.helpers import complete, park, require
from commandbus.testing.harness import DOMAIN, Harness


def found(bus: Harness, **filters: Any) -> list[UUID]:
    return [record.command_id for record in bus.query(**filters)]


def one_of_each(bus: Harness) -> dict[CommandStatus, UUID]:
    """A command in every state."""
    status, worker = CommandStatus, bus.worker()
    ids = {status.IN_TROUBLESHOOTING_QUEUE: park(bus), status.COMPLETED: complete(bus)}
    ids[status.FAILED] = bus.send()
    bus.call(worker.fail, bus.take(worker), BusinessRuleException("NO"))
    ids[status.CANCELED] = bus.send()
    bus.cancel(ids[status.CANCELED])
    ids[status.IN_PROGRESS] = bus.send()
    bus.take(worker)
    ids[status.PENDING] = bus.send()
    return ids


class QueryingSuite:
    def test_an_id_alone_finds_a_command(self, bus: Harness) -> None:
        other, wanted = bus.send("orders"), bus.send("billing")
        assert bus.call(bus.bus.get_command, wanted).domain == "billing"
        assert bus.call(bus.bus.get_command, str(other)).domain == "orders"
        assert bus.call(bus.bus.get_command, uuid4()) is None
        assert {event.domain for event in bus.call(bus.bus.get_audit_trail, wanted)} == {"billing"}

    def test_a_domain_only_narrows_what_an_id_finds(self, bus: Harness) -> None:
        wanted = bus.send("billing")
        assert bus.find(wanted, "billing") is not None
        assert bus.find(wanted, "orders") is None
        with pytest.raises(InvalidArgumentError, match="not a valid name"):
            bus.find(wanted, "no name")

    def test_an_id_of_several_domains_needs_one_of_them(self, bus: Harness) -> None:
        shared = bus.send("orders")
        bus.send("billing", command_id=shared)
        with pytest.raises(InvalidOperationError, match=r"\(orders, billing\); say which with domain="):
            bus.call(bus.bus.get_command, shared)
        assert bus.get(shared, "billing").domain == "billing"

    def test_digits_of_an_id_find_it_again(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(3)]
        other = bus.call(bus.bus.create_batch, [SendRequest("orders", "ship")])

        def looked_up(digits: str, kind: str = "command") -> list[UUID]:
            return list(bus.call(bus.bus.look_up, digits, kind))

        for wanted in ids:
            assert looked_up(short_id(wanted)) == [wanted]
            assert looked_up(str(wanted)[:-1]) == [wanted]
            assert looked_up(f"…{wanted.hex[-12:]}") == [wanted]
            assert looked_up(wanted.hex[-12:].upper()) == [wanted]
        assert set(looked_up(str(ids[0])[:6])) >= set(ids)
        assert looked_up(short_id(other.batch_id), "batch") == [other.batch_id]
        assert looked_up(other.batch_id.hex[-12:], "batch") == [other.batch_id]
        assert looked_up(short_id(ids[0]), "batch") == looked_up(short_id(ids[0]), "process") == []
        with pytest.raises(InvalidArgumentError, match="no part of an id"):
            looked_up("abc")

    def test_digits_of_an_end_are_looked_for_page_by_page(
        self, bus: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lookup, "SCAN", 2)
        ids = [bus.send() for _ in range(5)]
        found_ids, after, pages = [], None, 0
        while pages == 0 or after is not None:
            page = bus.call(bus.bus.look_up, f"…{ids[0].hex[-12:]}", after=after)
            found_ids += page
            after, pages = page.next, pages + 1
        assert (found_ids, pages) == ([ids[0]], 3)

    def test_the_newest_command_comes_first(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(5)]
        assert found(bus) == ids[::-1]

    def test_by_domain(self, bus: Harness) -> None:
        bus.send("orders")
        wanted = bus.send("billing")
        assert found(bus, domain="billing") == [wanted]

    def test_by_command_type(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship")
        wanted = bus.send(DOMAIN, "bill")
        assert found(bus, command_type="bill") == [wanted]

    @pytest.mark.parametrize("status", CommandStatus)
    def test_by_status(self, bus: Harness, status: CommandStatus) -> None:
        ids = one_of_each(bus)
        assert found(bus, status=status) == [ids[status]]
        assert found(bus, status=str(status)) == [ids[status]]

    def test_delayed_commands_are_pending(self, bus: Harness) -> None:
        later = bus.send(delay=60)
        assert found(bus, status="PENDING") == [later]

    def test_commands_that_are_held_back_are_pending(self, bus: Harness) -> None:
        require(bus, "gates")
        held = [bus.send(group_key="g") for _ in range(2)] + [bus.send(requires=["gpu"])]
        found = bus.query(status="PENDING")
        assert {record.command_id for record in found} == set(held)

    def test_by_tag(self, bus: Harness) -> None:
        bus.send(tags=["berlin"])
        wanted = bus.send(tags=["vip", "berlin"])
        assert found(bus, tag="vip") == [wanted]
        assert found(bus, tag="vi") == []

    def test_by_correlation(self, bus: Harness) -> None:
        whole = uuid4()
        ids = [bus.send(correlation_id=whole) for _ in range(2)]
        bus.send()
        assert found(bus, correlation_id=whole) == ids[::-1]
        assert found(bus, correlation_id=str(whole)) == ids[::-1]

    def test_by_time(self, bus: Harness) -> None:
        early = bus.send()
        bus.advance(60)
        late = bus.send()
        moment = bus.get(late).created_at
        assert found(bus, created_after=moment) == [late]
        assert found(bus, created_before=moment) == [early]
        assert found(bus, created_after=bus.get(early).created_at, created_before=moment) == [early]

    def test_all_conditions_hold_together(self, bus: Harness) -> None:
        wanted = bus.send("orders", "ship", tags=["vip"])
        bus.send("orders", "ship")
        bus.send("orders", "bill", tags=["vip"])
        bus.send("billing", "ship", tags=["vip"])
        conditions = {"domain": "orders", "command_type": "ship", "tag": "vip", "status": "PENDING"}
        assert found(bus, **conditions) == [wanted]

    def test_nothing_fits_nothing(self, bus: Harness) -> None:
        page = bus.query(domain="nowhere")
        assert (len(page), page.next, list(page)) == (0, None, [])

    def test_pages_cover_everything_once(self, bus: Harness) -> None:
        sent = bus.send_many(SendRequest(DOMAIN, "ship") for _ in range(25))
        seen: list[UUID] = []
        sizes: list[int] = []
        page = bus.query(limit=10)
        while True:
            sizes.append(len(page))
            seen += [record.command_id for record in page]
            if page.next is None:
                break
            page = bus.query(limit=10, after=page.next)
        assert sizes == [10, 10, 5]
        assert seen == [result.command_id for result in sent][::-1]

    def test_a_full_last_page_has_no_next(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 4)
        second = bus.query(limit=2, after=bus.query(limit=2).next)
        assert (len(second), second.next) == (2, None)

    def test_pages_hold_while_commands_arrive(self, bus: Harness) -> None:
        before = [bus.send() for _ in range(6)]
        first = bus.query(limit=3)
        for _ in range(4):
            bus.send()
        second = bus.query(limit=3, after=first.next)
        seen = [record.command_id for page in (first, second) for record in page]
        assert seen == before[::-1]

    def test_pages_respect_the_filters(self, bus: Harness) -> None:
        bus.send_many(SendRequest(("orders", "billing")[n % 2], "ship", n) for n in range(10))
        first = bus.query(domain="billing", limit=3)
        second = bus.query(domain="billing", limit=3, after=first.next)
        assert [record.data for page in (first, second) for record in page] == [9, 7, 5, 3, 1]

    def test_a_page_is_a_sequence_of_records(self, bus: Harness) -> None:
        command_id = bus.send()
        page = bus.query()
        assert len(page) == 1
        assert page[0] == next(iter(page)) == bus.get(command_id)

    @pytest.mark.parametrize("limit", [0, -1, 1_001, True, "10"])
    @pytest.mark.parametrize(
        "listed", ["query_commands", "list_processes", "list_batches", "list_actions", "search_audit"]
    )
    def test_a_limit_out_of_range_is_refused(self, bus: Harness, listed: str, limit: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="limit must be between 1 and 1000"):
            bus.call(getattr(bus.bus, listed), limit=limit)

    @pytest.mark.parametrize("listed", ["query_commands", "list_processes", "search_audit"])
    @pytest.mark.parametrize("after", ["1; drop table", "9" * 19])
    def test_a_cursor_that_is_none_is_refused(self, bus: Harness, listed: str, after: str) -> None:
        with pytest.raises(InvalidArgumentError, match="not the `next` of a page"):
            bus.call(getattr(bus.bus, listed), after=after)

    def test_an_unknown_status_is_refused_with_the_known_ones(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match=r"'DONE'.*PENDING.*COMPLETED"):
            bus.query(status="DONE")
