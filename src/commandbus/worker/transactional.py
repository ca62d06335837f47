"""Handlers in a transaction: their effects, their follow-ups and their outcome commit together.

The outcome is recorded by the same settle as any other, inside the handler's transaction and as its
last statement. It is fenced there like everywhere: when the lease is gone, nothing of it happens, so
every effect happens once, however often the command is delivered.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Protocol

import msgspec

from commandbus.domain.command import Command
from commandbus.domain.outcome import Succeeded
from commandbus.errors import LeaseLost
from commandbus.store.op import Op
from commandbus.store.records import Claimed, Settlement, SettleReport
from commandbus.store.session import Demand, Engine
from commandbus.store.waiting import done, finish
from commandbus.worker.context import HandlerContext, SyncHandlerContext


class HandlerTransaction(msgspec.Struct, frozen=True):
    """What a transactional handler works with."""

    connection: Any
    bus: Any


class HandlerResult(msgspec.Struct, frozen=True):
    """What a transactional call returns to its runtime: it is settled already, or must be."""

    settlement: Settlement


class TransactionHost(Protocol):
    """What is needed around such a call."""

    engine: Engine
    demand: Demand

    def bus_within(self, session: Any, is_async: bool) -> Any:
        """The bus as it is inside a transaction."""
        ...

    def conclude(
        self, context: HandlerContext | SyncHandlerContext, result: Any, ran: int
    ) -> Settlement:
        """What the handler's result amounts to."""
        ...

    def connected(self) -> None:
        """A connection was there in time."""
        ...

    def pauses(self, claimed: Claimed, *, goes_on: bool = False) -> None:
        """The store begins the transaction, or ends it; or the handler goes on."""
        ...

    def settled(self, report: SettleReport) -> None:
        """It is committed."""
        ...


def _record(host: TransactionHost, settlement: Settlement) -> Op[SettleReport]:
    report = yield from host.engine.store.settle([settlement])
    if report.lost:
        raise LeaseLost("The lease ran out before the handler ended; its effects were undone.")
    return report


def in_transaction(
    function: Callable[..., Any], host: TransactionHost
) -> Callable[[Command[Any], SyncHandlerContext], HandlerResult]:
    """A `def` handler with a transaction around it."""

    @wraps(function)
    def run(command: Command[Any], context: SyncHandlerContext) -> HandlerResult:
        call = partial(function, command, context)
        return finish(_conclude(call, context, host, host.engine.begin, wait=done))

    return run


def in_async_transaction(
    function: Callable[..., Awaitable[Any]], host: TransactionHost
) -> Callable[[Command[Any], HandlerContext], Awaitable[HandlerResult]]:
    """An `async def` handler with a transaction around it."""

    @wraps(function)
    async def run(command: Command[Any], context: HandlerContext) -> HandlerResult:
        call = partial(function, command, context)
        return await _conclude(call, context, host, host.engine.begin_async, wait=lambda result: result)

    return run


async def _conclude(
    call: Callable[[], Any],
    context: HandlerContext | SyncHandlerContext,
    host: TransactionHost,
    begin: Callable[[Demand], Any],
    wait: Callable[[Any], Awaitable[Any]],
) -> HandlerResult:
    """`wait` makes what the calls return awaitable, where it is not."""
    claimed = context._claimed
    host.pauses(claimed)
    transaction = await wait(begin(host.demand))
    try:
        host.connected()
        host.pauses(claimed, goes_on=True)
        bus = host.bus_within(transaction.session, is_async=wait is not done)
        context._unit = HandlerTransaction(transaction.connection, bus)
        began = time.perf_counter()
        result = await wait(call())
        settlement = host.conclude(context, result, _since(began))
        host.pauses(claimed)
        if not isinstance(settlement.outcome, Succeeded):
            return HandlerResult(settlement)
        report = await wait(transaction.record(_record(host, settlement)))
        await wait(transaction.commit())
    finally:
        await wait(transaction.rollback())
    host.settled(report)
    return HandlerResult(msgspec.structs.replace(settlement, recorded=True))


def _since(began: float) -> int:
    return int((time.perf_counter() - began) * 1_000_000)
