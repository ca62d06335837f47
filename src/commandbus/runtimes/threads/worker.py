"""`SyncWorker`: carries out commands in threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError as FutureCanceled
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from contextvars import copy_context
from math import inf
from typing import Any, TypeVar, assert_never

from commandbus.domain.moment import Duration
from commandbus.runtimes.containment import uncontained
from commandbus.runtimes.farewell import Budget
from commandbus.runtimes.signals import StopBySignal
from commandbus.runtimes.threads.background import Background
from commandbus.runtimes.threads.bus import SyncCommandBus
from commandbus.runtimes.threads.facade import blocking_own, blocking_own_flow
from commandbus.runtimes.threads.lifespan import enter_lifespans
from commandbus.runtimes.threads.loop import LoopThread
from commandbus.runtimes.threads.slots import Slot, Slots
from commandbus.runtimes.threads.waiting import take
from commandbus.runtimes.worker import RuntimeWorker
from commandbus.store.records import Claimed, Settlement
from commandbus.store.waiting import done, finish
from commandbus.worker import effects
from commandbus.worker.context import SyncHandlerContext
from commandbus.worker.ending import CANCEL_SECONDS
from commandbus.worker.events import (
    STATES,
    Event,
    Finished,
    Resized,
    StopRequested,
    Tick,
    Withdrawn,
)
from commandbus.worker.execution import Call
from commandbus.worker.pace import HAND_IN_SECONDS

T = TypeVar("T")

SHORT_PATIENCE = 0.25
LOOP_SECONDS = 1.0
"""An event loop that has not answered after so long is blocked by a handler."""


class SyncWorker(Background, RuntimeWorker[SyncCommandBus]):
    """Carries out the commands of one or several domains.

    `run()` blocks and works until `stop()`; handlers run in threads named `worker-{domain}-{n}`, up
    to `concurrency` at once. Claims and settles have threads of their own, so busy handlers cannot
    hold them up. `async def` handlers share one event loop, in one more thread.
    """

    runtime = "threads"
    bus_type = SyncCommandBus
    context_type = SyncHandlerContext

    receive = blocking_own_flow(RuntimeWorker._receive)
    complete = blocking_own(RuntimeWorker._complete)
    fail = blocking_own(RuntimeWorker._fail)
    release = blocking_own(RuntimeWorker._release)

    def _set_up(self) -> None:
        self._inbox: queue.SimpleQueue[Event | Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def run(self, *, signals: bool = False, until_idle: bool | Duration | None = None) -> None:
        """Work until `stop()` is called, or until KeyboardInterrupt, which stops gracefully.

        With `signals`, for the main thread of a program of your own, SIGINT and SIGTERM stop it as
        well: the first one gracefully, the second cancels what runs, a third does what it did before.

        With `until_idle` it also ends by itself, as soon as nothing runs and nothing is eligible: True,
        or the seconds for which that has to last. Delayed work counts when it becomes due within them;
        commands that run in other workers do not. `is_drained` says that it ended so.
        """
        if signals:
            with StopBySignal(self._stop_by_signal):
                self.run(until_idle=until_idle)
            return
        self._check_can_run()
        self._runner = threading.get_ident()
        self._stopped.clear()
        if not self._may_run(until_idle):
            self._stopped.set()
            return
        try:
            while self._another_round():
                self._run_once()
        finally:
            self._running = False
            # What came too late for this run must not reach the next one.
            self._inbox = queue.SimpleQueue()
            self._stopped.set()

    def _run_once(self) -> None:
        self._loop = LoopThread(f"worker-{self.domains[0]}-loop")
        self._lifespans = ExitStack()
        try:
            enter_lifespans(
                self.registry.lifespans, self._lifespans, self._execution.provided, self._loop
            )
        except BaseException:
            self._leave_loop(Budget())
            raise
        self._work_until_stopped()

    def _work_until_stopped(self) -> None:
        self._begin_anew()
        self._engine.meet(self._demand_of(self._core.concurrency))
        self._slots = Slots(
            f"worker-{self.domains[0]}",
            self._work,
            begun=self._execution.enter_slot,
            finished=lambda: self._inbox.put(None),
            given_up=self.health_status.record_stuck_thread,
            returned=self.health_status.record_thread_back,
            ageing=self._ageing,
        )
        self._stuck_after = stuck = self.settings.stuck_after
        self._patience = min(
            # What is left of a total may be little.
            (SHORT_PATIENCE if h.total_timeout else h.timeout or stuck for h in self.registry),
            default=stuck,
        )
        self._overdue_at = 0.0
        self._claims = _EffectThread("commandbus-claim", self._claim)
        self._settles = _EffectThread("commandbus-settle", self._settle)
        self._start_helpers()
        try:
            self._slots.resize(self._core.concurrency)
            self._handle(Tick())
            self._has_begun()
            self._pump()
        finally:
            self._wind_up()

    def stop(self, timeout: Duration | None = None) -> None:
        """Stop gracefully: no new claims, what was not begun goes back unharmed, running handlers
        may take `timeout` seconds (default: shutdown_timeout). Then `async def` handlers are canceled
        and threads that are still busy are left behind; their commands go back without using an
        attempt. Returns when the worker has stopped; at once if a handler of this worker calls it, or
        the thread of `run()`, as a signal handler does."""
        patience = self._stop_seconds(timeout)
        if self._remember_stop():
            return
        self._inbox.put(StopRequested(patience))
        if self._runner != threading.get_ident() and not self._execution.in_handler():
            self._stopped.wait()

    # The pump: everything that happens comes through here, one event after another.

    def _pump(self) -> None:
        while not self._core.done(time.monotonic()):
            try:
                event = self._next_event()
            except KeyboardInterrupt:
                event = StopRequested(self.settings.shutdown_timeout if not self._core.stopping else 0)
            if finished := self._slots.collect():
                self._handle(Finished(finished))
            if callable(event):
                event()
            elif event is not None:
                self._handle(event)
            self._slots.enough = self._core.enough_finished()
            self._slots.fit(finished)
            self._abandon_overdue()

    def _next_event(self) -> Event | Callable[[], None] | None:
        deadline = self._core.deadline()
        moment = inf if deadline is None else deadline
        if self._core.held:
            moment = min(moment, self._overdue_at)
        seconds = moment - time.monotonic()
        looks = self._slots.is_under_way and seconds > HAND_IN_SECONDS
        try:
            return take(self._inbox, HAND_IN_SECONDS if looks else seconds)
        except queue.Empty:
            return None if looks else Tick()

    def _handle(self, event: Event) -> None:
        self._observe(event)
        for effect in self._core.handle(event, time.monotonic()):
            self._perform(effect)
        if isinstance(event, STATES):
            self._changed(event)
            if isinstance(event, Resized):
                self._slots.resize(event.concurrency)

    def _post_from_anywhere(self, event: Event) -> None:
        if self._running:
            self._inbox.put(event)
        else:
            self._core.handle(event, time.monotonic())

    def _ask(self, answer: Callable[[], None]) -> None:
        self._inbox.put(answer)

    def _abandon_overdue(self) -> None:
        """Handlers over their time fail, and their threads are given up; at a stop they go back. An
        `async def` handler is given up only if the event loop is blocked: it can be canceled."""
        now = time.monotonic()
        if now < self._overdue_at:
            return
        on_loop = self._slots.overdue_on_loop(now)
        if on_loop and self._loop.responds(LOOP_SECONDS):
            for slot in on_loop:
                slot.deadline = now + self._stuck_after
        for slot, call in self._slots.abandon(lambda slot, _: slot.deadline <= now):
            ran = int((now - slot.began) * 1_000_000)
            ended = self._execution.interrupted if slot.interrupted else self._execution.timed_out
            self._handle(Finished([ended(call, ran)]))
        # What a slot begins from now on cannot be overdue before this.
        self._overdue_at = min(now + self._patience, self._slots.next_deadline() or inf)

    # Effects.

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Start(claimed):
                self._slots.start(claimed)
            case effects.Settle():
                self.health_status.asked("settle")
                self._settles.put(effect)
            case effects.Claim():
                self.health_status.asked("claim")
                self._engine.hub.arm(self._waiter)
                self._claims.put(effect)
            case effects.Forget() | effects.PassOn():
                self._perform_here(effect)
            case effects.Withdraw(lease_ids):
                self._inbox.put(Withdrawn(self._slots.withdraw(lease_ids)))
            case effects.Interrupt(None):
                self._children.interrupt(None)
                self._slots.interrupt()
                # Nothing that begins from now on has more time than this.
                self._patience, self._overdue_at = CANCEL_SECONDS, 0.0
            case effects.Interrupt(lease_ids):
                gone = lease_ids or frozenset()
                self._children.interrupt(gone)
                given_up = self._slots.abandon(
                    lambda _, call: call.claimed.lease_id in gone and not call.in_child
                )
                if given_up:
                    self._inbox.put(Finished([], len(given_up)))
            case _:
                assert_never(effect)

    def _claim(self, effect: effects.Claim) -> None:
        self._inbox.put(finish(self._answer_claim(effect, _blocking(self._engine.reserved_session))))

    def _settle(self, effect: effects.Settle) -> None:
        session = self._engine.reserved_session
        self._inbox.put(finish(self._answer_settle(effect.batch, _blocking(session))))

    # A slot's work: in its own thread.

    def _work(self, slot: Slot, claimed: Claimed) -> Settlement | None:
        """How the command ended; None if its slot was given up, and its end decided, meanwhile."""
        begun = self._execution.begin(claimed)
        if isinstance(begun, Settlement):
            return begun
        self._slots.begin(slot, begun, self._patience_for(begun))
        settlement = self._execute(begun, slot)
        self._execution.ended(claimed)
        if settlement is None or begun.context.completion is None:
            return settlement
        return finish(self._confirmed(begun, settlement, _blocking(self._engine.session)))

    def _patience_for(self, call: Call) -> float:
        """Seconds after which the pump looks whether a call must be given up."""
        if call.in_child:
            return inf
        if call.handler.is_async:  # its thread cancels it at its timeout; see `_abandon_overdue`
            return self._stuck_after
        return call.timeout or self._stuck_after

    def _execute(self, call: Call, slot: Slot) -> Settlement | None:
        began = time.perf_counter()
        error: BaseException | None = None
        outcome: Any = None
        try:
            # A context of its own: what a handler leaves in context variables stays with it.
            own = copy_context()
            outcome = own.run(call.handler.function, call.command, call.context)
            if call.handler.is_async:
                outcome = own.run(self._await, outcome, call.timeout, slot)
        except BaseException as raised:  # also SystemExit: a handler ends its command, not its worker
            error = raised
        ran = _since(began)
        if slot.given_up:
            return None
        if error is None:
            return self._execution.succeeded(call, outcome, ran)
        if isinstance(error, _AsyncTimeout):
            return self._execution.timed_out(call, ran)
        if isinstance(error, FutureCanceled):
            if call.claimed.seq in self._execution.requests:
                return self._execution.canceled(call.claimed, ran)
            if slot.interrupted:
                return self._execution.interrupted(call, ran)
        return self._execution.failed(call, error, ran)

    def _await(self, coroutine: Any, timeout: float | None, slot: Slot) -> Any:
        slot.errand = self._loop.submit(coroutine)
        future = slot.errand.future
        if slot.interrupted:
            slot.errand.cancel()
        if self._execution.requests:
            self._stop_calls(frozenset(self._execution.requests))
        try:
            return uncontained(future.result(timeout))
        except FutureTimeout:
            if not future.done():
                future.cancel()
                raise _AsyncTimeout from None
            raise
        finally:
            slot.errand = None

    def _stop_calls(self, seqs: frozenset[int]) -> None:
        self._slots.stop_calls(seqs)

    def _wind_up(self) -> None:
        """Release everything, in an order that loses no outcome."""
        budget = Budget()
        self._engine.hub.unregister(self._waiter)
        self._slots.close(budget.left() / 3)
        self._claims.close(budget.left() / 3)
        self._settles.close(budget.left() / 3)
        try:
            self._leave_loop(budget)
        finally:
            self._stop_helpers(budget)

    def _leave_loop(self, budget: Budget) -> None:
        """Stop the lifespans, then the loop on which `async def` ones live."""
        try:
            self._lifespans.close()
        finally:
            self._loop.close(budget.left() / 2)
            self._engine.loop_ended()


class _AsyncTimeout(Exception):  # noqa: N818 - a signal inside this module
    """An `async def` handler was over its timeout and has been canceled."""


class _EffectThread:
    """A thread that runs one kind of effect, so that it never waits behind handlers."""

    def __init__(self, name: str, perform: Any) -> None:
        self._perform = perform
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, effect: Any) -> None:
        self._orders.put(effect)

    def close(self, seconds: float) -> None:
        self._orders.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (effect := self._orders.get()) is not None:
            self._perform(effect)


def _blocking(session: Any) -> Callable[..., Awaitable[Any]]:
    """A session's `run` for logic that is written once for both runtimes."""
    return lambda op, **how: done(session.run(op, **how))


def _since(began: float) -> int:
    return int((time.perf_counter() - began) * 1_000_000)
