"""`Worker`: carries out commands on an event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, assert_never

from commandbus.domain.moment import Duration
from commandbus.runtimes.asyncio.background import Background
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.runtimes.asyncio.facade import awaiting_own, awaiting_own_flow
from commandbus.runtimes.asyncio.isolation import OwnContext, ResumeCounter, SlotTask, isolated
from commandbus.runtimes.asyncio.lifespan import enter_lifespans
from commandbus.runtimes.asyncio.offload import ThreadPerCall
from commandbus.runtimes.asyncio.stall import LoopStall, StallMonitor
from commandbus.runtimes.containment import (
    OverTime,
    bounded,
    take_cancellation,
    task_at_work,
    to_its_end,
)
from commandbus.runtimes.farewell import Budget
from commandbus.runtimes.signals import StopBySignal
from commandbus.runtimes.worker import RuntimeWorker
from commandbus.store.records import Settlement
from commandbus.worker import effects
from commandbus.worker.context import HandlerContext
from commandbus.worker.ending import CANCEL_SECONDS
from commandbus.worker.events import (
    STATES,
    Event,
    Finished,
    StopRequested,
    Tick,
    Withdrawn,
)
from commandbus.worker.execution import Call
from commandbus.worker.pace import HAND_IN_SECONDS
from commandbus.worker.ready import ReadyQueue

T = TypeVar("T")
logger = logging.getLogger("commandbus.worker")

FAIR_SECONDS = 0.001
"""Handlers that never wait are run one after another for this long before others get the loop."""
URGENT_FAIR_SECONDS = 0.00025
"""The same while urgent commands come in: the claim that finds them needs several turns of the loop."""


class Worker(Background, RuntimeWorker[CommandBus]):
    """Carries out the commands of one or several domains.

    `run()` works until `stop()`; handlers run concurrently up to `concurrency`, `async def` on the
    loop and `def` in threads. A claimed command stays leased while its handler runs.
    """

    runtime = "asyncio"
    bus_type = CommandBus
    context_type = HandlerContext

    receive = awaiting_own_flow(RuntimeWorker._receive)
    complete = awaiting_own(RuntimeWorker._complete)
    fail = awaiting_own(RuntimeWorker._fail)
    release = awaiting_own(RuntimeWorker._release)

    def _set_up(self) -> None:
        self._inbox: deque[Event] = deque()
        self._finished: list[Settlement] = []
        self._fair_seconds = FAIR_SECONDS
        self._enough = 1
        """The core learns of so many that finished, or of fewer after a moment."""
        self._handing_in = False
        self._dropped = 0
        self._turns = ResumeCounter()
        self._ready = ReadyQueue(self._ageing)
        self._idle_slots: deque[asyncio.Future[None]] = deque()
        self._slots: set[asyncio.Task[None]] = set()
        self._calls: dict[asyncio.Task[None], Call] = {}
        self._interrupting: set[asyncio.Task[None]] = set()
        self._canceling: set[asyncio.Task[None]] = set()
        self._left_behind: set[asyncio.Task[None]] = set()
        self._effects: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    async def run(self, *, signals: bool = False, until_idle: bool | Duration | None = None) -> None:
        """Work until `stop()` is called or this task is canceled, which also stops gracefully.

        With `signals`, for the main thread of a program of your own, SIGINT and SIGTERM stop it as
        well: the first one gracefully, the second cancels what runs, a third does what it did before.

        With `until_idle` it also ends by itself, as soon as nothing runs and nothing is eligible: True,
        or the seconds for which that has to last. Delayed work counts when it becomes due within them;
        commands that run in other workers do not. `is_drained` says that it ended so.
        """
        if signals:
            with StopBySignal(self._stop_by_signal):
                await self.run(until_idle=until_idle)
            return
        if not self._may_run(until_idle):
            return
        # No await since the right to run was taken, so these are set before any other task can stop it.
        self._loop = asyncio.get_running_loop()
        self._runner = task_at_work()
        self._cancels = self._runner.cancelling()
        self._stopped = asyncio.Event()
        self._news = asyncio.Event()
        try:
            while self._another_round():
                async with AsyncExitStack() as lifespans:
                    await enter_lifespans(self.registry.lifespans, lifespans, self._execution.provided)
                    await self._work()
        finally:
            self._running = False
            # What came too late for this run must not reach the next one.
            self._inbox.clear()
            self._finished, self._dropped = [], 0
            self._slots.clear()
            self._stopped.set()

    async def _work(self) -> None:
        self._begin_anew()
        self._engine.meet(self._demand_of(self._core.concurrency))
        assert self._loop is not None
        self._ready = ReadyQueue(self._ageing)
        self._idle_slots.clear()
        self._timer_at = self._timer = None
        self._handing_in = False
        self._threads = ThreadPerCall(
            f"worker-{self.domains[0]}", self.health_status.record_thread_back
        )
        self._start_helpers()
        self._stalls = StallMonitor(self._loop, lambda: self._core.held > 0, self._on_stall)
        try:
            self._post(Tick())
            self._has_begun()
            await self._pump()
        finally:
            await to_its_end(self._wind_up())

    async def stop(self, timeout: Duration | None = None) -> None:
        """Stop gracefully: no new claims, what was not begun goes back unharmed, running handlers
        may take `timeout` seconds (default: shutdown_timeout). Then `async def` handlers are canceled
        and threads that are still busy are left behind; their commands go back without using an
        attempt. Returns when the worker has stopped; at once if a handler of this worker calls it."""
        patience = self._stop_seconds(timeout)
        if self._remember_stop() or self._stopped is None:
            return
        self._post(StopRequested(patience))
        if not self._execution.in_handler():
            await self._stopped.wait()

    # The pump: everything that happens comes through here, one event after another.

    async def _pump(self) -> None:
        canceled: asyncio.CancelledError | None = None
        while True:
            try:
                while True:
                    self._handle_all()
                    if self._core.done(time.monotonic()):
                        if canceled is not None:
                            raise canceled
                        return
                    self._set_timer()
                    await self._news.wait()
                    self._news.clear()
            except asyncio.CancelledError as error:
                # A canceled run() ends; outcomes of running handlers must be recorded first.
                if self._core.stopping:
                    raise
                canceled = error
                self._post(StopRequested(self.settings.shutdown_timeout))

    def _handle_all(self) -> None:
        while True:
            if self._finished or self._dropped:
                settlements, self._finished = self._finished, []
                dropped, self._dropped = self._dropped, 0
                event: Event = Finished(settlements, dropped)
            elif self._inbox:
                event = self._inbox.popleft()
            else:
                break
            self._observe(event)
            for effect in self._core.handle(event, time.monotonic()):
                self._perform(effect)
            if isinstance(event, STATES):
                self._changed(event)
        self._enough = self._core.enough_finished()
        urgent = self._core.prefetch.is_urgent
        self._fair_seconds = URGENT_FAIR_SECONDS if urgent else FAIR_SECONDS
        self._fit_slots()

    def _run_canceled(self) -> bool:
        return self._runner.cancelling() > self._cancels

    def _post(self, event: Event) -> None:
        self._inbox.append(event)
        self._news.set()

    def _post_from_anywhere(self, event: Event) -> None:
        loop = self._loop
        if loop is not None and self._running and not loop.is_closed():
            loop.call_soon_threadsafe(self._post, event)
        else:
            self._core.handle(event, time.monotonic())

    def _ask(self, answer: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(answer)

    def _on_stall(self, stall: LoopStall) -> None:
        self.health_status.record_loop_stall(stall.frame)

    def _set_timer(self) -> None:
        deadline = self._core.deadline()
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at, self._timer = deadline, None
        if deadline is not None:
            assert self._loop is not None
            delay = max(0.0, deadline - time.monotonic())
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = self._timer = None
        self._post(Tick())

    # Effects.

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Start(claimed):
                self._ready.add(claimed)
                self._wake_slots(1)
            case effects.Settle(batch):
                self.health_status.asked("settle")
                self._spawn(self._answer_settle(batch, self._engine.reserved_async_session.run))
            case effects.Claim():
                self.health_status.asked("claim")
                self._engine.hub.arm(self._waiter)
                self._spawn(self._answer_claim(effect, self._engine.reserved_async_session.run))
            case effects.Forget() | effects.PassOn():
                self._perform_here(effect)
            case effects.Withdraw(lease_ids):
                self._post(Withdrawn(self._ready.withdraw(lease_ids)))
            case effects.Interrupt(lease_ids):
                self._children.interrupt(lease_ids)
                for slot, call in self._calls.items():
                    wanted = lease_ids is None or call.claimed.lease_id in lease_ids
                    if wanted and not call.in_child:
                        self._interrupting.add(slot)
                        self._cancel(slot, call)
            case _:
                assert_never(effect)

    def _cancel(self, slot: asyncio.Task[None], call: Call) -> None:
        """Cancel what a slot runs; one that does not give way is left behind, after a moment."""
        assert self._loop is not None
        slot.cancel()
        if call.handler.is_async and call.timeout is None:
            self._loop.call_later(CANCEL_SECONDS, self._leave_behind, slot, call)

    def _leave_behind(self, slot: asyncio.Task[None], call: Call) -> None:
        """A handler swallows its cancellation: another slot takes the place of its own. One whose
        sender called it off may still end by itself, and keeps its slot."""
        if self._calls.get(slot) is not call or slot not in self._interrupting:
            return
        logger.warning("%s ignores its cancellation, its slot is replaced", call.handler.command_type)
        del self._calls[slot]
        self._interrupting.discard(slot)
        self._slots.discard(slot)
        self._left_behind.add(slot)
        slot.add_done_callback(self._left_behind.discard)
        if self._core.stopping:
            self._finished.append(self._execution.interrupted(call, 0))
        else:
            self._dropped += 1
        self._news.set()

    def _stop_calls(self, seqs: frozenset[int]) -> None:
        for slot, call in self._calls.items():
            if call.claimed.seq in seqs and call.handler.is_async:
                self._canceling.add(slot)
                slot.cancel()

    def _spawn(self, answer: Coroutine[Any, Any, Event]) -> None:
        task = asyncio.ensure_future(self._post_answer(answer))
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)

    async def _post_answer(self, answer: Coroutine[Any, Any, Event]) -> None:
        self._post(await answer)

    # Slots: as many tasks as handlers may run at once, each taking one command after another.

    def _fit_slots(self) -> None:
        assert self._loop is not None
        while len(self._slots) < self._core.concurrency:
            slot = SlotTask(self._slot(), self._loop)
            self._slots.add(slot)
            slot.add_done_callback(self._slot_ended)
        self._wake_slots(len(self._slots) - self._core.concurrency)

    def _wake_slots(self, count: int) -> None:
        """Wake so many idle slots, if there are as many."""
        while count > 0 and self._idle_slots:
            idle = self._idle_slots.popleft()
            if not idle.done():  # a handler may have left a timer behind that canceled its slot
                idle.set_result(None)
                count -= 1

    def _wake_others(self) -> None:
        """A slot waits or ends: others take what is ready. One that never waits works it off alone."""
        if self._ready.waiting:
            self._wake_slots(2)

    def _hand_in(self) -> None:
        """Tell the core what finished; while more is ready, a little later and more at once."""
        assert self._loop is not None
        if not self._ready.waiting or len(self._finished) >= self._enough:
            self._news.set()
        elif not self._handing_in:
            self._handing_in = True
            self._loop.call_later(HAND_IN_SECONDS, self._hand_in_now)

    def _hand_in_now(self) -> None:
        self._handing_in = False
        self._news.set()

    def _slot_ended(self, slot: asyncio.Task[None]) -> None:
        self._slots.discard(slot)
        self._interrupting.discard(slot)
        self._canceling.discard(slot)
        self._news.set()

    async def _slot(self) -> None:
        slot, ready = task_at_work(), self._ready
        assert self._loop is not None
        self._execution.enter_slot()
        fair_until = time.perf_counter() + self._fair_seconds
        while True:
            while not ready.waiting and len(self._slots) <= self._core.concurrency:
                idle = self._loop.create_future()
                self._idle_slots.append(idle)
                await idle
                fair_until = time.perf_counter() + self._fair_seconds
            if len(self._slots) > self._core.concurrency:
                self._slots.discard(slot)
                self._wake_others()
                return
            claimed = ready.waiting.popleft()
            turns = self._turns.count
            begun = self._execution.begin(claimed)
            settlement: Settlement | None
            if isinstance(begun, Call):
                self._calls[slot] = begun
                handler, began = begun.handler, time.perf_counter()
                if handler.is_async and begun.timeout is None:
                    run: OwnContext[Any] = OwnContext(self._turns)
                    if run.begin(handler.function, begun.command, begun.context):
                        settlement = self._execution.succeeded(begun, run.result, _since(began))
                    else:
                        self._wake_others()
                        settlement = await self._execute(begun, slot, began, run)
                else:
                    self._wake_others()
                    settlement = await self._execute(begun, slot, began, self._invoke(begun))
                if begun.context.completion is not None and settlement is not None:
                    settlement = await self._confirm(begun, settlement)
                self._execution.ended(claimed)
                if self._calls.pop(slot, None) is None:
                    return  # it was left behind
            else:
                settlement = begun
            if settlement is None:
                self._dropped += 1
                self._news.set()
            else:
                self._finished.append(settlement)
                if self._core.chains.waiting:
                    ready.add(self._core.chains.ended((settlement,)))
            if not self._handing_in or not ready.waiting or len(self._finished) >= self._enough:
                self._hand_in()
            if slot.cancelling() or slot in self._interrupting or slot in self._canceling:
                self._wake_others()
                return  # a new task takes over, which no leftover of the cancellation can reach
            if self._turns.count != turns:
                fair_until = time.perf_counter() + self._fair_seconds
            elif time.perf_counter() >= fair_until:
                await asyncio.sleep(0)
                fair_until = time.perf_counter() + self._fair_seconds

    async def _execute(
        self, call: Call, slot: asyncio.Task[None], began: float, run: Awaitable[Any]
    ) -> Settlement | None:
        """Await what a handler has to wait for; None when nothing may be recorded about it."""
        handler = call.handler
        limit: asyncio.Timeout | None = None
        timeout = call.timeout
        if call.in_child:
            timeout = None
        elif timeout is None and not handler.is_async:
            timeout = self.settings.stuck_after
        try:
            if timeout is None:
                result = await run
            elif handler.is_async:
                result = await bounded(run, timeout)
            else:
                async with asyncio.timeout(timeout) as limit:
                    result = await run
        except asyncio.CancelledError as error:
            if slot not in self._calls:
                return None
            if slot in self._canceling:
                return self._execution.canceled(call.claimed, _since(began))
            if slot not in self._interrupting:
                if self._run_canceled():  # by a loop that ends: it cancels every task
                    return self._execution.interrupted(call, _since(began))
                return self._execution.failed(call, error, _since(began))
            if not handler.is_async:  # its thread goes on
                self.health_status.record_stuck_thread()
            # Nothing may be recorded about a command whose lease is gone.
            return self._execution.interrupted(call, _since(began)) if self._core.stopping else None
        except OverTime:
            return self._execution.timed_out(call, _since(began))
        except TimeoutError as error:
            if limit is not None and limit.expired():
                self.health_status.record_stuck_thread()
                return self._execution.timed_out(call, _since(began))
            return self._execution.failed(call, error, _since(began))
        except BaseException as error:  # also SystemExit: a handler ends its command, not its worker
            return self._execution.failed(call, error, _since(began))
        return self._execution.succeeded(call, result, _since(began))

    async def _confirm(self, call: Call, settlement: Settlement) -> Settlement:
        await take_cancellation()  # what the handler left behind must not end this look
        return await self._confirmed(call, settlement, self._engine.async_session.run)

    def _invoke(self, call: Call) -> Any:
        function: Callable[..., Any] = call.handler.function
        if call.handler.is_async:
            return isolated(self._turns, function, call.command, call.context)
        run = copy_context().run
        return self._threads.call(partial(run, function, call.command, call.context))

    async def _wind_up(self) -> None:
        """Release everything, in an order that loses no outcome."""
        budget = Budget()
        self._engine.hub.unregister(self._waiter)
        left = self._slots | self._left_behind
        self._calls.clear()  # nothing that ends from now on counts, and its slot ends with it
        for slot in left:
            slot.cancel()
        if left:
            await asyncio.wait(left, timeout=budget.left() / 3)
        if self._effects:
            await asyncio.wait(self._effects, timeout=budget.left() / 2)
        if self._timer is not None:
            self._timer.cancel()
        self._threads.close()
        await asyncio.to_thread(self._stop_helpers, budget)
        await asyncio.to_thread(self._stalls.stop)


def _since(began: float) -> int:
    return int((time.perf_counter() - began) * 1_000_000)
