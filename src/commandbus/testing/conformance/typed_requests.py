"""Requests of typed commands where others send them: batches, schedules and processes."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.process.declaration import Process, step
from commandbus.domain.process.values import ProcessStatus
from commandbus.domain.reply import Reply
from commandbus.domain.retry import RETRY_HEADER, RetryPolicy
from commandbus.domain.schedule import Schedule
from commandbus.domain.unique import Unique
from commandbus.errors import (
    BusinessRuleException,
    InvalidArgumentError,
    PayloadError,
    PermanentCommandError,
)
from commandbus.operations.schedules import tick
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry


class Receipt(msgspec.Struct):
    article: int
    total: Decimal


class Purchase(msgspec.Struct):
    article: int
    total: Decimal = Decimal(0)


class TypedRequestsSuite:
    @pytest.fixture
    def orders(self) -> HandlerRegistry:
        return HandlerRegistry(DOMAIN)

    def test_a_batch_takes_typed_requests_and_completes_with_one(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        seen: list[Any] = []

        @orders.command
        def ship(article: int) -> Decimal:
            seen.append(article)
            return Decimal(article)

        @orders.command
        def close(note: str) -> None:
            seen.append(note)

        batch = bus.call(
            bus.bus.create_batch, [ship(1), ship(2).options(delay=0)], on_complete=close("all")
        )
        bus.call(bus.bus.add_to_batch, batch.batch_id, [ship(3)])
        with bus.run_worker(orders):
            eventually(lambda: len(seen) == 4)
        assert (sorted(seen[:3]), seen[3]) == ([1, 2, 3], "all")

    def test_a_batch_refuses_what_it_cannot_count(self, bus: Harness) -> None:
        mail = HandlerRegistry("mail")

        @mail.command
        def post(to: str) -> None: ...

        with pytest.raises(InvalidArgumentError, match="takes requests"):
            bus.call(bus.bus.create_batch, [post])
        with pytest.raises(InvalidArgumentError, match="no unique_key, unique or sender"):
            bus.call(bus.bus.create_batch, [post("ada").options(unique_key="one")])

    def test_edits_of_operators_are_checked_against_the_contract(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int, price: Decimal) -> Receipt:
            return Receipt(article, price)

        @orders.command
        def close(note: str) -> None: ...

        sent = bus.call(bus.bus.send, ship(1, Decimal("0.10")))
        worker = bus.worker()
        bus.call(worker.fail, bus.take(worker), PermanentCommandError("NO"))
        queue = bus.troubleshooting
        with pytest.raises(PayloadError, match="article"):
            bus.call(queue.operator_retry, sent, data={"article": "x", "price": "1"})
        with pytest.raises(InvalidArgumentError, match=r"orders\.ship.*orders\.close"):
            bus.call(queue.operator_retry, sent.command_id, data=close("no"))
        with pytest.raises(PayloadError, match="result"):
            bus.call(queue.operator_complete, sent, {"article": "x"})
        bus.call(queue.operator_retry, sent.command_id, data=ship(2, Decimal("0.20")))
        with bus.run_worker(orders):
            assert bus.wait(sent).result == Receipt(2, Decimal("0.20"))
            with pytest.raises(PayloadError, match="price"):
                bus.call(bus.bus.resend, sent, {"article": 3, "price": []})
            again = bus.call(bus.bus.resend, sent, ship(3, Decimal("0.30")))
            assert bus.wait(again).result == Receipt(3, Decimal("0.30"))

    def test_a_completion_by_an_operator_has_the_type_of_the_contract(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.command
        def ship(article: int) -> Receipt:
            return Receipt(article, Decimal(0))

        sent = bus.call(bus.bus.send, ship(1))
        worker = bus.worker()
        bus.call(worker.fail, bus.take(worker), PermanentCommandError("NO"))
        bus.call(bus.troubleshooting.operator_complete, sent, Receipt(1, Decimal("0.10")))
        assert bus.call(bus.bus.get_command, sent).result == Receipt(1, Decimal("0.10"))

    def test_a_schedule_sends_a_typed_request(self, bus: Harness, orders: HandlerRegistry) -> None:
        seen: list[Decimal] = []

        @orders.command(priority="high")
        def ship(article: int, price: Decimal) -> None:
            seen.append(article * price)

        daily = Schedule(name="daily", request=ship(7, price=Decimal("1.50")), every=3600)
        bus.call(bus.bus.put_schedule, daily)
        (record,) = bus.call(bus.bus.list_schedules)
        assert record.schedule == Schedule(
            name="daily",
            domain=DOMAIN,
            command_type="ship",
            data={"article": 7, "price": "1.50"},
            every=3600,
            priority="high",
        )
        bus.advance(3600)
        assert bus.run(tick(bus.bus.scope)).sent == 1
        bus.call(bus.bus.trigger_schedule, "daily")
        assert [command.priority for command in bus.query(domain=DOMAIN)] == [0, 0]
        with bus.run_worker(orders):
            eventually(lambda: seen == [Decimal("10.50")] * 2)

    def test_a_schedule_keeps_all_options_of_its_request(self, bus: Harness) -> None:
        request = SendRequest(
            DOMAIN,
            "ship",
            {"order": 7},
            correlation_id=UUID(int=1),
            causation_id=UUID(int=2),
            reply_to="replies",
            priority="low",
            delay=timedelta(seconds=60),
            expires=600,
            unique_key="one",
            unique=Unique(window=30),
            tags=["vip"],
            headers={"tenant": "acme"},
            retry=RetryPolicy(5, [1, 2]),
        )
        if bus.capabilities.gates:
            request = request.options(group_key="berlin", requires=["gpu"])
        bus.call(bus.bus.put_schedule, Schedule(name="s", request=request, every=3600))
        bus.advance(3600)
        assert bus.run(tick(bus.bus.scope)).sent == 1
        (sent,) = bus.query(domain=DOMAIN)
        assert (sent.correlation_id, sent.causation_id) == (UUID(int=1), UUID(int=2))
        assert (sent.reply_to, sent.priority, sent.max_attempts) == ("replies", 10, 5)
        assert (sent.unique_key, sent.tags) == ("one", ("vip",))
        if bus.capabilities.gates:
            assert (sent.group_key, sent.requires) == ("berlin", ("gpu",))
        assert sent.headers["tenant"] == "acme"
        assert sent.headers["schedule"] == "s"
        assert sent.headers[RETRY_HEADER] == {"backoff_schedule": [1, 2]}
        assert sent.expires_at is not None
        assert (sent.expires_at - sent.due_at).total_seconds() == pytest.approx(600, abs=60)
        assert (sent.due_at - sent.created_at).total_seconds() == pytest.approx(60, abs=1)
        again = bus.call(bus.bus.trigger_schedule, "s")
        assert (again.command_id, again.duplicate) == (sent.command_id, True)

    def test_a_schedule_beside_a_command_has_the_defaults_of_the_command(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        @orders.schedule(every=3600)
        @orders.command(priority="high", expires=60, unique_key=lambda data: f"article {data.article}")
        def count(article: int = 7) -> None: ...

        bus.call(bus.bus.declare, orders)
        bus.advance(3600)
        assert bus.run(tick(bus.bus.scope)).sent == 1
        (sent,) = bus.query(domain=DOMAIN)
        assert (sent.data, sent.priority, sent.unique_key) == ({}, 0, "article 7")
        assert sent.expires_at is not None

    def test_the_steps_of_a_process_are_typed_requests(
        self, bus: Harness, orders: HandlerRegistry
    ) -> None:
        seen: list[Any] = []

        @orders.command
        def reserve(article: int) -> Receipt:
            return Receipt(article, Decimal("1.50"))

        @orders.command
        def release(total: Decimal) -> None:
            seen.append(total)

        @orders.command
        def pay(total: Decimal) -> None:
            raise BusinessRuleException("NO_MONEY", f"{total} is too much")

        @orders.process
        class Buy(Process[Purchase]):
            @step
            def take(self, state: Purchase) -> SendRequest[Receipt]:
                return reserve(state.article)

            @take.reply
            def taken(self, state: Purchase, reply: Reply) -> None:
                seen.append(reply.result)
                state.total = reserve.result_of(reply).total

            @take.compensation
            def put_back(self, state: Purchase) -> SendRequest[None]:
                return release(state.total)

            @step
            def settle(self, state: Purchase) -> SendRequest[None]:
                return pay(state.total)

        manager = bus.manager_class(bus.bus, Buy)
        process_id = bus.call(manager.start, Purchase(7)).process_id
        with bus.run_worker(orders):
            record = bus.call(manager.wait, process_id, timeout=10)
        assert record.status is ProcessStatus.COMPENSATED
        assert record.error.message == "1.50 is too much"
        assert seen == [{"article": 7, "total": "1.50"}, Decimal("1.50")]
