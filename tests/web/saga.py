"""Processes for pages to show: one that goes well, one that is undone, one that is stuck."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from commandbus import (
    BusinessRuleException,
    CommandBus,
    HandlerRegistry,
    PermanentCommandError,
    ProcessManager,
    ProcessReplyRouter,
    SendRequest,
    Worker,
)
from commandbus.processes import Process, step


@dataclass
class Order:
    article: str
    price: int
    card_token: str = "tok_77"
    reservation: str | None = None


class PlaceOrder(Process[Order]):
    @step
    def reserve(self, state: Order) -> SendRequest:
        return SendRequest("stock", "reserve", {"article": state.article})

    @reserve.reply
    def reserved(self, state: Order, reply: Any) -> None:
        state.reservation = reply.result

    @reserve.compensation
    def release(self, state: Order) -> SendRequest:
        return SendRequest("stock", "release", {"reservation": state.reservation})

    @step
    def charge(self, state: Order) -> SendRequest:
        return SendRequest("bank", "charge", {"amount": state.price})

    @step
    def dispatch(self, state: Order) -> SendRequest:
        return SendRequest("stock", "dispatch", {"article": state.article})


class Deliver(Process[Order]):
    """Two steps at the same time, one that is skipped, and a compensation that needs two tries."""

    @step(fork=["ship", "notify"])
    def charge(self, state: Order) -> SendRequest:
        return SendRequest("bank", "charge", {"amount": state.price})

    @charge.compensation
    def refund(self, state: Order) -> SendRequest:
        return SendRequest("bank", "refund", {"article": state.article})

    @step(then="close")
    def ship(self, state: Order) -> SendRequest:
        return SendRequest("stock", "dispatch", {"article": state.article})

    @step(then="close")
    def notify(self, state: Order) -> SendRequest:
        return SendRequest("stock", "reserve", {"article": state.article})

    @step(joins=["ship", "notify"])
    def close(self, state: Order) -> SendRequest:
        return SendRequest("stock", "close", {"article": state.article})

    @step
    def thank(self, state: Order) -> SendRequest | None:
        return None


handlers = HandlerRegistry()
refunds: list[str] = []


@handlers.handler("bank", "refund")
async def refund(command: Any, context: Any) -> None:
    refunds.append(command.data["article"])
    if len(refunds) == 1:
        raise BusinessRuleException("CLOSED", "the bank is closed")


@handlers.handler("stock", "close")
async def close(command: Any, context: Any) -> None:
    if command.data["article"] == "kite":
        raise BusinessRuleException("NOT_HERE", "it was never there")


@handlers.handler("stock", "reserve")
async def reserve(command: Any, context: Any) -> str:
    return f"R-{command.data['article']}"


@handlers.handler("stock", "release")
async def release(command: Any, context: Any) -> None:
    if command.data["reservation"] == "R-piano":
        raise BusinessRuleException("SOLD", "it stands in somebody's house")


@handlers.handler("stock", "dispatch")
async def move(command: Any, context: Any) -> None:
    if command.data["article"] == "piano":
        raise PermanentCommandError("TOO_HEAVY", "no van carries a piano")


@handlers.handler("bank", "charge")
async def charge(command: Any, context: Any) -> None:
    if command.data["amount"] > 1_000:
        raise BusinessRuleException("NO_MONEY", "the account is empty")


async def deliver(bus: CommandBus, *articles: str) -> list[UUID]:
    """The ids of deliveries, each carried to an end; the first refund has to be retried."""
    worker = Worker(bus, ["stock", "bank"], handlers)
    router = ProcessReplyRouter(bus, Deliver)
    running = [asyncio.create_task(worker.run()), asyncio.create_task(router.run())]
    manager = ProcessManager(bus, Deliver)
    refunds.clear()
    ids = [(await manager.start(Order(article, 5))).process_id for article in articles]
    for process_id in ids:
        if (await manager.wait(process_id, timeout=20)).compensation_failed:
            await manager.retry(process_id)
            # A process that an operator retried waits until a router has read the request.
            while (await manager.wait(process_id, timeout=20)).finished_at is None:
                await asyncio.sleep(0.01)
    await router.stop()
    await worker.stop()
    await asyncio.gather(*running)
    return ids


async def drive(bus: CommandBus, **more: Order) -> dict[str, UUID]:
    """The ids of three processes and more, each as far as it goes by itself."""
    worker = Worker(bus, ["stock", "bank"], handlers)
    router = ProcessReplyRouter(bus, PlaceOrder)
    running = [asyncio.create_task(worker.run()), asyncio.create_task(router.run())]
    manager = ProcessManager(bus, PlaceOrder)
    orders = {"good": Order("pen", 2), "undone": Order("car", 20_000), "stuck": Order("piano", 900)}
    ids = {name: (await manager.start(order)).process_id for name, order in (orders | more).items()}
    for process_id in ids.values():
        await manager.wait(process_id, timeout=20)
    await router.stop()
    await worker.stop()
    await asyncio.gather(*running)
    return ids
