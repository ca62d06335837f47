"""Carries out everything that is ready, one command after another, in the order of the queue.

The decisions are those of a worker, made by the same code; only its threads, its timers and its signals
to prefetch are left out, so that a test has one order of events and an end. The round is a generator
that says what to wait for; the two drivers below do nothing but wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import AsyncExitStack, ExitStack
from contextvars import copy_context
from typing import Any, TypeAlias, overload
from uuid import UUID

from commandbus.domain.cause import running
from commandbus.domain.command import CommandRecord
from commandbus.operations.batches import close_batches
from commandbus.operations.canceling import with_requests
from commandbus.operations.commands import get_command
from commandbus.operations.routing import fire_timers, route
from commandbus.operations.scope import Scope
from commandbus.runtimes.asyncio import lifespan as async_lifespan
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.runtimes.asyncio.isolation import ResumeCounter, isolated
from commandbus.runtimes.asyncio.worker import Worker
from commandbus.runtimes.containment import uncontained
from commandbus.runtimes.threads import lifespan as sync_lifespan
from commandbus.runtimes.threads.bus import SyncCommandBus
from commandbus.runtimes.threads.loop import LoopThread
from commandbus.runtimes.threads.worker import SyncWorker
from commandbus.services.declarer import Declarer
from commandbus.services.process_router import queues_of
from commandbus.services.scheduler import Scheduler
from commandbus.store.op import Op
from commandbus.store.records import Claimed, ClaimReply, ClaimRequest, Settlement
from commandbus.testing.crashing import Crash
from commandbus.worker.completing import confirm
from commandbus.worker.execution import Call
from commandbus.worker.handlers import Handler, HandlerRegistry

AnyBus: TypeAlias = CommandBus | SyncCommandBus
Wrap: TypeAlias = Callable[[Handler], Handler]
Round: TypeAlias = Generator[Op[Any] | Call, Any, list[CommandRecord]]

ROUTED_MAX = 200
LIMIT = 10_000
"""More runs than this in one drain mean that it would never end."""


@overload
def drain(
    bus: SyncCommandBus,
    registry: HandlerRegistry,
    domains: str | Iterable[str] | None = None,
    *,
    limit: int = LIMIT,
    wrap: Wrap | None = None,
) -> list[CommandRecord]: ...


@overload
def drain(
    bus: CommandBus,
    registry: HandlerRegistry,
    domains: str | Iterable[str] | None = None,
    *,
    limit: int = LIMIT,
    wrap: Wrap | None = None,
) -> Awaitable[list[CommandRecord]]: ...


def drain(
    bus: AnyBus,
    registry: HandlerRegistry,
    domains: str | Iterable[str] | None = None,
    *,
    limit: int = LIMIT,
    wrap: Wrap | None = None,
) -> list[CommandRecord] | Awaitable[list[CommandRecord]]:
    """Carry out all commands that are due, and those that they send, until none is; `await` it with
    a CommandBus, call it with a SyncCommandBus.

    Returns the records of what was run, as they are at the end, in the order of their first run.
    Lifespans of the registry are started and stopped around it. Schedules that are due send, batches
    that are through complete, and processes of the registry go on. What is delayed or waits for a
    retry stays: move the clock and drain again. Timeouts of handlers do not pass here. Raises
    AssertionError after `limit` runs. `domains` are those of the registry, unless given.
    """
    handled = dict.fromkeys(domain for domain, _ in registry.registered_handlers())
    served = domains or handled or registry.domains  # a registry may have processes alone
    kind: Any = Worker if isinstance(bus, CommandBus) else SyncWorker
    worker = kind(bus, served, registry, concurrency=1, name="drain")
    if wrap is not None:
        worker.wrap_handlers(wrap)
    steps = _round(bus, worker, limit)
    if isinstance(bus, CommandBus):
        return _awaiting(bus, worker, steps)
    return _blocking(bus, worker, steps)


def _round(bus: AnyBus, worker: Any, limit: int) -> Round:
    store, scope, execution = bus.engine.store, bus.scope, worker._execution
    request = ClaimRequest(worker.domains, 1, worker.name, worker.settings.visibility_timeout)
    seen: dict[UUID, str] = {}
    runs = 0
    declarer = Declarer(worker.registry)
    while (yield declarer.work(scope)) == 0:
        declarer.confirm()
    while True:
        claimed = (yield store.claim(request)).claimed
        if not claimed:
            yield Scheduler().work(scope)
            claimed = (yield store.claim(request)).claimed
        if not claimed:
            if (yield from _route(scope, worker)):
                continue
            break
        claimed = (yield with_requests(store, ClaimReply(claimed))).claimed
        (one,) = claimed
        seen[one.command_id] = one.domain
        runs += 1
        assert runs <= limit, (
            f"{limit} runs, and {one.command_type} {one.command_id} in {one.domain} is ready again: "
            "something sends or snoozes itself for ever; fix it, or raise limit=."
        )
        settlement = yield from _run(execution, one)
        if not settlement.recorded:
            report = yield store.settle([settlement])
            if report.batches:
                worker._note(report)
                yield worker._closer.work(scope)
    records = []
    for command_id, domain in seen.items():
        records.append((yield get_command(scope, command_id, domain=domain)))
    return records


def _route(scope: Scope, worker: Any) -> Generator[Op[Any], Any, bool]:
    """Drive processes on by what has ended and by time that has passed; whether there was any."""
    declarations = worker.registry.processes
    if not declarations:
        return False
    request = ClaimRequest(
        queues_of(declarations), ROUTED_MAX, worker.name, worker.settings.visibility_timeout
    )
    claimed = (yield scope.store.claim(request)).claimed
    if claimed:
        report = yield route(scope, declarations, claimed, worker.name)
    else:
        report = yield fire_timers(scope, declarations, worker.name, ROUTED_MAX)
    if report.batches:
        yield close_batches(scope, report.batches)
    return bool(report.routed or claimed)


def _run(execution: Any, claimed: Claimed) -> Generator[Op[Any] | Call, Any, Settlement]:
    outside = running.get()
    try:
        return (yield from _run_as_cause(execution, claimed))
    finally:
        running.set(outside)  # what the test sends afterwards has no cause


def _run_as_cause(execution: Any, claimed: Claimed) -> Generator[Op[Any] | Call, Any, Settlement]:
    begun: Call | Settlement = execution.begin(claimed)
    if isinstance(begun, Settlement):
        return begun
    began = time.perf_counter()
    try:
        result = yield begun
    except (Crash, KeyboardInterrupt):
        raise  # nothing is left that could record it
    except BaseException as error:  # as in a worker: a handler ends its command, not its caller
        ended: Settlement = execution.failed(begun, error, _since(began))
    else:
        ended = execution.succeeded(begun, result, _since(began))
    if begun.context.completion is not None:
        ended = yield confirm(execution, begun, ended)
    return ended


def _blocking(bus: SyncCommandBus, worker: Any, steps: Round) -> list[CommandRecord]:
    loop = LoopThread("commandbus-drain")

    def perform(step: Op[Any] | Call) -> Any:
        if not isinstance(step, Call):
            return bus.session.run(step)
        own = copy_context()
        made = own.run(step.handler.function, step.command, step.context)
        return (
            uncontained(own.run(loop.submit, made).future.result()) if step.handler.is_async else made
        )

    try:
        with ExitStack() as lifespans:
            sync_lifespan.enter_lifespans(
                worker.registry.lifespans, lifespans, worker._execution.provided, loop
            )
            return _driven(steps, perform)
    finally:
        loop.close()
        bus.engine.loop_ended()


def _driven(steps: Round, perform: Callable[[Any], Any]) -> list[CommandRecord]:
    try:
        step = next(steps)
        while True:
            try:
                answer = perform(step)
            except BaseException as error:  # the round decides what a failure means
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def _awaiting(bus: CommandBus, worker: Any, steps: Round) -> list[CommandRecord]:
    async with AsyncExitStack() as lifespans:
        await async_lifespan.enter_lifespans(
            worker.registry.lifespans, lifespans, worker._execution.provided
        )
        return await _driven_async(bus, steps)


async def _driven_async(bus: CommandBus, steps: Round) -> list[CommandRecord]:
    async def perform(step: Op[Any] | Call) -> Any:
        if not isinstance(step, Call):
            return await bus.session.run(step)
        function, arguments = step.handler.function, (step.command, step.context)
        if not step.handler.is_async:
            return await asyncio.to_thread(function, *arguments)
        return await isolated(ResumeCounter(), function, *arguments)

    try:
        step = next(steps)
        while True:
            try:
                answer = await perform(step)
            except BaseException as error:  # the round decides what a failure means
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def _since(began: float) -> int:
    return int((time.perf_counter() - began) * 1_000_000)
