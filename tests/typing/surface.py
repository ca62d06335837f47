"""What type checkers say about the public surface; test_types.py asks mypy and pyright.

Every line that ends in `# error` must be refused by both, every other line accepted by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypedDict, assert_type

import msgspec
import psycopg

from commandbus import (
    PROVIDED,
    Command,
    CommandBus,
    CommandRecord,
    HandlerContext,
    HandlerRegistry,
    ProcessManager,
    Provided,
    RetryPolicy,
    Schedule,
    SendRequest,
    Worker,
    command_type,
)
from commandbus.integrations.celery import AsyncResult, Celery, Task
from commandbus.processes import Process, StartProcessResult
from commandbus.records import CancelBatchResult, CommandType, CreateBatchResult, Reply, SendResult
from commandbus.runtimes.asyncio.bus import HandlerBus
from commandbus.runtimes.threads.bus import SyncHandlerBus
from commandbus.sync import SyncCommandBus, SyncHandlerContext, SyncWorker
from commandbus.testing import handler_context, sync_handler_context


@dataclass
class Receipt:
    total: Decimal


class Refund(msgspec.Struct):
    order: int
    amount: Decimal = Decimal(1)


class Keys(TypedDict):
    order: int


payments = HandlerRegistry("payments")
mail = HandlerRegistry("mail")


@payments.command
async def charge(order: int, amount: Decimal = Decimal(1)) -> Receipt:
    return Receipt(amount)


@payments.command("charge-card", retry=RetryPolicy(3), timeout=5)
async def charge_card(context: HandlerContext, order: int) -> Receipt:
    sent = await context.send(charge(order))
    assert_type(sent, SendResult[Receipt])
    await context.send("mail", "post", {"to": "ada"}, delay=5)
    await context.send(charge(order), dely=5)  # error
    return Receipt(Decimal(order))


@payments.command
def refund(data: Refund) -> None: ...


@payments.command
async def provided(context: HandlerContext, order: int, *, client: Provided[Receipt] = PROVIDED) -> int:
    assert_type(client, Receipt)
    assert_type(context.bus, HandlerBus)
    assert_type(await context.bus.send(charge(order)), SendResult[Receipt])
    assert_type(context.connection, psycopg.AsyncConnection[Any])
    context.bus.sent(charge(order))  # error
    return order


@payments.command
def provided_too(context: SyncHandlerContext, order: int) -> None:
    assert_type(context.bus, SyncHandlerBus)
    assert_type(context.bus.send(charge(order)), SendResult[Receipt])
    assert_type(context.connection, psycopg.Connection[Any])


@payments.command(timeout=5)
def count(context: SyncHandlerContext, keys: Keys) -> list[int]:
    assert_type(context.send(charge(1)), SendResult[Receipt])
    return [keys["order"]]


@mail.command()
def post(to: str, *, copies: int = 1) -> str:
    return to


@payments.command(timout=5)  # error
def misspelt(order: int) -> None: ...


@payments.handler("payments", "old")
async def old(command: Command[Refund], context: HandlerContext) -> Receipt:
    assert_type(command.data, Refund)
    return Receipt(command.data.amount)


elsewhere = command_type("payments", "charge", Refund, Receipt)
unanswered = command_type("payments", "refund", Refund)


def results(reply: Reply) -> None:
    assert_type(charge.result_of(reply), Receipt)


def requests() -> None:
    assert_type(charge(7), SendRequest[Receipt])
    assert_type(charge(order=7, amount=Decimal(2)), SendRequest[Receipt])
    assert_type(charge_card(order=7), SendRequest[Receipt])
    assert_type(refund(Refund(7)), SendRequest[None])
    assert_type(provided(order=7), SendRequest[int])
    provided()  # error
    assert_type(count({"order": 7}), SendRequest[list[int]])
    assert_type(post("ada", copies=2), SendRequest[str])
    assert_type(elsewhere(order=7), SendRequest[Receipt])
    assert_type(elsewhere(Refund(7)), SendRequest[Receipt])
    assert_type(unanswered(7), SendRequest[None])
    assert_type(charge(7).options(delay=5), SendRequest[Receipt])
    charge(order="x")  # error
    charge()  # error
    charge(7, Decimal(1), 2)  # error
    charge(oder=7)  # error
    charge_card(handler_context(), 7)  # error
    refund(7)  # error
    refund(order=7)  # error
    count({"oder": 7})  # error
    elsewhere(order="x")  # error
    elsewhere(Receipt(Decimal(1)))  # error
    charge(7).options(dely=5)  # error
    Schedule(name="nightly", request=charge(7), cron="0 2 * * *")
    Schedule(name="nightly", request=charge, cron="0 2 * * *")  # error
    any_command: CommandType[..., Any] = charge
    one_command: CommandType[[Refund], None] = refund
    other: CommandType[[int], None] = refund  # error
    print(any_command, one_command, other)


async def wholes(bus: CommandBus, manager: ProcessManager[Refund], trip: type[Process[Refund]]) -> None:
    made = await bus.create_batch([charge(1), post("ada")], on_complete=refund(Refund(1)))
    assert_type(made, CreateBatchResult)
    assert_type(await bus.cancel_batch(made.batch_id, reason="late"), CancelBatchResult)
    await bus.create_batch("payments", [charge(1)])  # error
    await bus.create_batch([charge])  # error
    await bus.get_batch("payments", made.batch_id)  # error
    started = await manager.start(Refund(7))
    assert_type(started, StartProcessResult)
    await manager.wait(started, timeout=5)
    await manager.start("nonsense")  # error


async def asynchronously(bus: CommandBus) -> None:
    sent = await bus.send(charge(order=7), delay=60)
    assert_type(sent, SendResult[Receipt])
    record = await bus.wait(sent, timeout=5)
    assert_type(record, CommandRecord[Receipt])
    assert_type(record.result, Receipt | None)
    assert_type(await bus.request(charge(order=7), timeout=5), Receipt)
    assert_type(await bus.request(refund(Refund(7)), timeout=5), None)
    assert_type(await bus.request(elsewhere(7), timeout=5), Receipt)
    assert_type(await bus.send_many([charge(1), charge(2)]), Sequence[SendResult[Receipt]])
    await bus.send_many([charge(1), post("ada")])
    both = [charge(1), post("ada")]
    await bus.send_many(both)
    await bus.create_batch(both)
    await bus.send_many([charge(1), post])  # error
    assert_type(await bus.send("payments", "charge", {"order": 7}), SendResult[Any])
    assert_type(await bus.wait(sent.command_id), CommandRecord[Any])
    assert_type(await bus.get_command(sent), CommandRecord[Receipt] | None)
    assert_type(await bus.get_command(sent.command_id), CommandRecord[Any] | None)
    await bus.get_command(charge(7))  # error
    assert_type(await bus.request("payments", "charge", timeout=5), Reply)
    assert_type(await bus.send(SendRequest("payments", "charge")), SendResult[Any])
    assert_type(await charge.run(order=7), Receipt)
    assert_type(await charge_card.run_with(handler_context(), 7), Receipt)
    await bus.send(charge(order="x"))  # error
    await bus.send(charge)  # error
    await bus.send(charge(7), dely=60)  # error
    await bus.send("payments")  # error
    await bus.request(charge(7))  # error
    await charge.run(order="x")  # error
    await elsewhere.run(order=7)  # error
    wrong: str = await bus.request(charge(7), timeout=5)  # error
    print(wrong, record.result.total)  # error


def blocking(bus: SyncCommandBus) -> None:
    sent = bus.send(charge(order=7), delay=60)
    assert_type(sent, SendResult[Receipt])
    record = bus.wait(sent, timeout=5)
    assert_type(record, CommandRecord[Receipt])
    assert_type(bus.request(charge(order=7), timeout=5), Receipt)
    assert_type(bus.request(post("ada"), timeout=5), str)
    assert_type(bus.send_many([charge(1)]), Sequence[SendResult[Receipt]])
    assert_type(bus.send("payments", "charge"), SendResult[Any])
    assert_type(bus.wait(sent.command_id), CommandRecord[Any])
    assert_type(bus.get_command(sent), CommandRecord[Receipt] | None)
    assert_type(bus.request("payments", "charge", timeout=5), Reply)
    assert_type(refund.run(Refund(7)), None)
    assert_type(count.run({"order": 7}), list[int])
    assert_type(count.run_with(sync_handler_context(), {"order": 7}), list[int])
    bus.send(charge(order="x"))  # error
    bus.send(charge(7), dely=60)  # error
    bus.request(charge(7))  # error
    refund.run(7)  # error
    count.run_with(handler_context(), {"order": 7})  # error


def ported() -> None:
    app = Celery("shop")

    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task(bind=True, max_retries=3)
    def fetch(self: Task[..., Any], sku: str) -> str:
        return f"{sku} {self.request.retries}"

    assert_type(double.delay(7), AsyncResult[int])
    assert_type(fetch.delay("pen").get(timeout=5), str)
    assert_type(double(7), int)
    double.delay("seven")  # error
    fetch.delay()  # error
    double.delay(7).get() + "x"  # error

    @app.task(max_retrys=3)  # error
    def misspelled() -> None: ...


def workers(bus: CommandBus, sync_bus: SyncCommandBus) -> None:
    Worker(bus, payments, concurrency=8)
    Worker(bus, payments, mail)
    Worker(bus, "payments", payments)
    Worker(bus, ["payments", "mail"], payments, mail, poll_interval=5)
    SyncWorker(sync_bus, payments)
    Worker(sync_bus, payments)  # error
    SyncWorker(bus, payments)  # error
    Worker(bus, payments, concurency=8)  # error
    Worker(bus, 7)  # error
    HandlerRegistry(7)  # error
