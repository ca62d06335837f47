"""A worker in this process, until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from commandbus.interfaces.cli import output, target, text
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.signals import DRAINED, Signals, supervisor
from commandbus.interfaces.cli.supervision import Supervision
from commandbus.runtimes.worker import RuntimeWorker
from commandbus.settings import WorkerSettings
from commandbus.store.urls import shown_url
from commandbus.worker.handlers import HandlerRegistry

T = TypeVar("T")

LEAVE_SECONDS = 2.0
"""After a worker has stopped, how long its process may take to end by itself."""
SPARE_SECONDS = 0.5
"""It ends so long before it would be ended as one that did not stop in time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to serve."""

    url: str
    domains: list[str]
    threads: bool
    settings: WorkerSettings
    supervision: Supervision
    log_format: str = "text"
    until_idle: float | None = None

    def dress(self, worker: RuntimeWorker[Any]) -> None:
        """What is logged while a handler runs names its command, where logs can tell; and a supervisor
        is known to others, which leave a crash of this process to it."""
        worker.supervisor = supervisor()
        if self.log_format == "json":
            from commandbus.observe.logs import correlated

            worker.wrap_handlers(correlated)


is_worker_process = False
"""Whether this process works and its end is watched: a behaviour of `load` asks."""


class _Escaping(logging.Formatter):
    """Log lines with what could steer a terminal escaped; tracebacks keep their lines."""

    def format(self, record: logging.LogRecord) -> str:
        return text.block(super().format(record))


def configure_logging(verbose: bool, log_format: str = "text") -> None:
    """Logs go to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        from commandbus.observe.logs import JsonFormatter

        handler.setFormatter(JsonFormatter())
        output.logs = logging.getLogger("commandbus.cli")
    else:
        handler.setFormatter(_Escaping("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def serve(plan: Plan, registry: HandlerRegistry) -> int:
    """Run a worker until a signal stops it, or nothing is left to do. Returns the exit code."""
    global is_worker_process
    is_worker_process = True
    if plan.threads:
        return _serve_threads(plan, registry)
    return run_async(_serve_asyncio(plan, registry))


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, on the loop that suits workers."""
    from commandbus import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


async def _serve_asyncio(plan: Plan, registry: HandlerRegistry) -> int:
    from commandbus import CommandBus, Worker

    bus = CommandBus(plan.url)
    target.check_store(bus.engine, create=True)
    with target.opening():
        await bus.open()
    async with bus:
        worker = Worker(bus, plan.domains, registry, settings=plan.settings)
        loop, stops = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def begin(timeout: float | None) -> None:
            stops.add(loop.create_task(worker.stop(timeout)))

        plan.dress(worker)
        supervision = plan.supervision.around(worker)
        supervision.__enter__()
        try:
            running = loop.create_task(worker.run(until_idle=plan.until_idle))
            tell = partial(tell_loop, loop, begin)
            failure = partial(_code, worker, Exit.FAILURE)
            signals = Signals(tell, plan.settings.shutdown_timeout, failure)
            worker.obey_stop = signals.drain
            _hello(worker.name, plan)
            await running
            await asyncio.gather(*stops)
        finally:
            # Elsewhere, because it waits for threads that may wait for this loop.
            await asyncio.to_thread(supervision.__exit__, None, None, None)
    return _goodbye(worker, signals)


def tell_loop(
    loop: asyncio.AbstractEventLoop, begin: Callable[[float | None], None], timeout: float | None
) -> None:
    with suppress(RuntimeError):  # it is closed, so the end is near anyway
        loop.call_soon_threadsafe(begin, timeout)


def _serve_threads(plan: Plan, registry: HandlerRegistry) -> int:
    from commandbus.sync import SyncCommandBus, SyncWorker

    bus = SyncCommandBus(plan.url)
    target.check_store(bus.engine, create=True)
    with target.opening():
        bus.open()
    with bus:
        worker = SyncWorker(bus, plan.domains, registry, settings=plan.settings)

        def begin(timeout: float | None) -> None:
            threading.Thread(target=worker.stop, args=(timeout,), daemon=True).start()

        plan.dress(worker)
        with plan.supervision.around(worker):
            failure = partial(_code, worker, Exit.FAILURE)
            signals = Signals(begin, plan.settings.shutdown_timeout, failure)
            worker.obey_stop = signals.drain
            _hello(worker.name, plan)
            worker.run(until_idle=plan.until_idle)
    return _goodbye(worker, signals)


def leave_in(left: float) -> float:
    """In how many seconds a process leaves threads behind, if it is ended in so many anyway: before
    that, because it has stopped in time."""
    return max(0.0, min(LEAVE_SECONDS, left - SPARE_SECONDS))


def _end_soon(code: int, left: float) -> None:
    """Everything is recorded and closed. A handler that swallows its cancellation, or a thread that
    never ends, must not keep the process: Python would wait for them for ever."""

    def leave() -> None:
        time.sleep(leave_in(left))
        output.note("handlers that cannot be stopped are left behind")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)

    threading.Thread(target=leave, name="commandbus-leave", daemon=True).start()


def _hello(name: str, plan: Plan) -> None:
    kind = "threads" if plan.threads else "asyncio"
    output.done(
        f"worker {name} serves {', '.join(plan.domains)}: {plan.settings.concurrency} at once, {kind}, "
        f"{shown_url(plan.url)}"
    )


def _goodbye(worker: RuntimeWorker[Any], signals: Signals) -> int:
    metrics, why = worker.metrics, ": nothing is left to do" if worker.is_drained else ""
    why = ": an operator stopped it" if worker.was_asked_to_stop else why
    output.done(
        f"worker {worker.name} has stopped after {text.plural(metrics.commands_settled, 'command')}, "
        f"{text.duration(metrics.average_process_seconds)} each{why}"
    )
    code = _code(worker, Exit.OK)
    _end_soon(code, signals.left)
    return code


def _code(worker: RuntimeWorker[Any], otherwise: Exit) -> int:
    """How its process ends: a supervisor must not start another where an operator stopped it."""
    is_over = worker.is_drained or worker.was_asked_to_stop
    return DRAINED if is_over and worker.supervisor else otherwise
