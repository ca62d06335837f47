"""The warm child processes of one worker.

A call takes an idle child or waits for one that is being started; the child is used again afterwards.
The pool has as many children as calls have run at once. A child that dies or is killed is replaced at
once, so that the next command finds a warm one.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf

from commandbus.domain.failure import Origin, set_origin
from commandbus.errors import TransientCommandError
from commandbus.runtimes.children.answers import answer
from commandbus.runtimes.children.process import Child, ChildGone, ChildStalled, WrongMessage
from commandbus.store.records import CancelRequest
from commandbus.worker.context import SyncHandlerContext
from commandbus.worker.isolation.crossing import CrossedError, unpack
from commandbus.worker.isolation.messages import (
    Ask,
    Call,
    Done,
    Logged,
    Raised,
    Ready,
    Setup,
    Stop,
)
from commandbus.worker.isolation.options import Isolated, main_source
from commandbus.worker.isolation.verdicts import (
    ChildEnded,
    Encoded,
    End,
    Watch,
    died,
    over_memory,
)
from commandbus.worker.metrics import WorkerMetrics

logger = logging.getLogger("commandbus.worker")

START_SECONDS = 60.0
"""How long a child may take to import the handlers."""
REPORT_SECONDS = 5.0
"""How often changed figures are reported to the fleet at most."""
LEAVE_SECONDS = 1.0
"""How long idle children may take to end by themselves when the worker stops."""


class Children:
    def __init__(
        self,
        handlers: Iterable[Isolated],
        concurrency: Callable[[], int],
        metrics: WorkerMetrics,
        report: Callable[[], object],
    ) -> None:
        self._modules = sorted({one.module for one in handlers})
        self._concurrency = concurrency
        self._metrics = metrics
        self._report = report
        self._reported_at = -inf
        self._changed = threading.Condition()
        self._all: set[Child] = set()
        self._idle: list[Child | Exception] = []
        """Those that may be taken; an error when one could not be started."""
        self._running: dict[int, tuple[Child, int]] = {}
        """Which child runs a command, by its sequence, and under which lease."""
        self._waiting = self._coming = 0
        """Calls that wait for a child, and children that were ordered and are not idle yet."""
        self._stopping = self._closed = False
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._starter = threading.Thread(target=self._start, name="commandbus-children", daemon=True)

    def start(self) -> None:
        """Start the first child, so that the first command need not wait for it."""
        if self._modules:
            with self._changed:
                self._order()

    def call(self, isolated: Isolated, context: SyncHandlerContext, timeout: float | None) -> Encoded:
        """Run a handler in a child. Raises ChildEnded when the worker ended it, and what the handler
        raised, or what its end means."""
        while True:
            child = self._take()
            try:
                return self._call(child, isolated, context, timeout)
            except _NotBegun:
                continue  # it died while it was idle
            finally:
                self._give_back(child)

    def cancel(self, requests: Mapping[int, CancelRequest]) -> None:
        """Ask these calls to end, or end them."""
        with self._changed:
            for seq in requests.keys() & self._running.keys():
                child, _ = self._running[seq]
                if requests[seq].terminate:
                    self._kill(child, End.CANCELED)
                elif child.canceled != child.calls:
                    child.canceled = child.calls
                    child.ring(Stop(child.calls, requests[seq]))

    def interrupt(self, lease_ids: frozenset[int] | None) -> None:
        """End the calls under these leases, which are gone; or all calls, because the worker stops."""
        with self._changed:
            if lease_ids is not None:
                for child, lease_id in self._running.values():
                    if lease_id in lease_ids:
                        self._kill(child, End.LEASE_GONE)
                return
            self._stopping = True
            for child in self._all.difference(self._idle):
                self._kill(child, End.STOPPED)
            self._changed.notify_all()

    def close(self) -> None:
        """End all children, and wait until they are gone."""
        with self._changed:
            self._stopping = self._closed = True
            idle = [child for child in self._all if child in self._idle]
            for child in self._all.difference(idle):
                self._kill(child, End.STOPPED)
            for child in idle:
                child.leave()
            self._changed.notify_all()
            # Each is let go of by the thread that waits for it.
            self._changed.wait_for(lambda: len(self._all) <= len(idle), LEAVE_SECONDS)
        until = time.monotonic() + LEAVE_SECONDS
        for child in idle:
            with suppress(ChildGone):
                while child.hear(max(0.0, until - time.monotonic())) is not None:
                    pass
            child.kill()
            self._bury(child)
        self._orders.put(False)
        if self._starter.is_alive():
            self._starter.join(LEAVE_SECONDS)

    # Taking and giving back.

    def _take(self) -> Child:
        with self._changed:
            if not self._idle and not self._stopping:
                self._waiting += 1
                if self._coming < self._waiting:
                    self._order()
                while not self._idle and not self._stopping:
                    self._changed.wait()
                self._waiting -= 1
            if self._stopping:
                raise ChildEnded(End.STOPPED)
            found = self._idle.pop()
        if isinstance(found, Exception):
            raise TransientCommandError(
                "CHILD_NOT_STARTED", f"No child process could be started: {found}."
            ) from found
        return found

    def _give_back(self, child: Child) -> None:
        with self._changed:
            spent = child.ending is not None or not child.ready or self._closed
            if not spent and len(self._all) <= self._concurrency():
                self._idle.append(child)
                self._changed.notify()
                return
            replace = spent and not self._stopping
        child.kill()
        self._bury(child)
        if replace:
            with self._changed:
                self._metrics.child_restarts += 1
                self._order()

    def _bury(self, child: Child) -> None:
        child.reap()
        with self._changed:
            self._all.discard(child)
            self._metrics.children = len(self._all)
            self._changed_figures()
            self._changed.notify_all()

    def _kill(self, child: Child, end: End) -> None:
        if child.ending is None:
            child.ending = end
            self._metrics.child_killed(end)
            child.kill()

    def _changed_figures(self) -> None:
        """Report them; of several deaths in a row not each."""
        now = time.monotonic()
        if now >= self._reported_at + REPORT_SECONDS and not self._stopping:
            self._reported_at = now
            self._report()

    def _order(self) -> None:
        if not self._coming and not self._starter.is_alive():
            self._starter.start()
        self._coming += 1
        self._orders.put(True)

    def _start(self) -> None:
        """The thread that starts children and outlives them."""
        while self._orders.get():
            if self._stopping:
                continue
            try:
                found: Child | Exception = Child(self._setup())
            except Exception as error:  # this thread must go on; the call that waits raises it
                logger.warning("cannot start a child process: %s", error)
                found = error
            with self._changed:
                self._coming -= 1
                if isinstance(found, Child):
                    self._all.add(found)
                    self._metrics.children = len(self._all)
                    self._changed_figures()
                    if self._closed:
                        found.kill()
                if isinstance(found, Child) or self._waiting:
                    self._idle.append(found)
                self._changed.notify()
        for child in list(self._all):  # one that was started while the others were ended
            child.kill()
            self._bury(child)

    def _setup(self) -> Setup:
        main = main_source() if "__main__" in self._modules else None
        modules = [name for name in self._modules if name != "__main__"]
        level = logging.getLogger().level
        return Setup(os.getpid(), [str(one) for one in sys.path], [*sys.argv], main, modules, level)

    # One call.

    def _call(
        self, child: Child, isolated: Isolated, context: SyncHandlerContext, timeout: float | None
    ) -> Encoded:
        claimed = context._claimed
        if not child.ready:
            self._await_ready(child)
        with self._changed:
            if self._stopping or child.ending is not None:
                raise ChildEnded(End.STOPPED)
            child.calls += 1
            self._running[claimed.seq] = (child, claimed.lease_id)
        try:
            if not context._services.holds(claimed.lease_id):  # it may have waited long for its child
                raise ChildEnded(End.LEASE_GONE)
            request = context._services.requests.get(claimed.seq)
            if request is not None and request.terminate:
                raise ChildEnded(End.CANCELED)
            child.limit_memory(isolated.memory)
            watch = Watch(timeout, isolated.soft_timeout, time.monotonic())
            try:
                child.say(
                    Call(
                        child.calls,
                        isolated.module,
                        isolated.name,
                        claimed,
                        context.max_attempts,
                        context.worker,
                        isolated.memory,
                        request,
                    ),
                    watch.left(time.monotonic()),
                )
            except ChildStalled:
                raise self._timed_out(child, watch) from None
            except ChildGone:
                child.ready = False  # spent
                raise _NotBegun from None
            return self._attend(child, isolated, context, watch)
        finally:
            with self._changed:
                del self._running[claimed.seq]

    def _await_ready(self, child: Child) -> None:
        try:
            message = child.hear(START_SECONDS)
        except ChildGone:
            if child.ending is not None:
                raise ChildEnded(child.ending) from None
            raise _not_started(f"it ended at once ({died(child.reap(), None).message})") from None
        if isinstance(message, Ready):
            child.ready = True
            return
        if isinstance(message, Raised):
            raise _not_started(message.error.text, message.error)
        raise _not_started(f"it did not import the handlers within {START_SECONDS:g} s")

    def _attend(
        self, child: Child, isolated: Isolated, context: SyncHandlerContext, watch: Watch
    ) -> Encoded:
        """Serve a child until its handler has ended."""
        while True:
            try:
                message = child.hear(watch.wait(time.monotonic()))
                match message:
                    case Done(number, result) if number == child.calls:
                        return Encoded(result)
                    case Raised(number) if number == child.calls:
                        ran = watch.ran(time.monotonic())
                        raise self._error_of(child, message, isolated, ran)
                    case Ask(number) if number == child.calls:
                        child.say(answer(context, message), watch.left(time.monotonic()))
                    case Logged(fields):
                        _log(fields)
                    case None:
                        pass
                    case _:
                        raise _wrong(child, f"{type(message).__name__} of another call")
                # After each message, for a handler may send them without a pause.
                match watch.overdue(time.monotonic()):
                    case "warn":
                        child.ring(Stop(child.calls))
                    case "kill":
                        raise self._timed_out(child, watch)
                    case _:
                        pass
            except ChildStalled:
                raise self._timed_out(child, watch) from None
            except WrongMessage as error:
                raise _wrong(child, str(error)) from None
            except ChildGone:
                raise self._end_of(child, isolated) from None

    def _timed_out(self, child: Child, watch: Watch) -> ChildEnded:
        with self._changed:
            self._kill(child, End.TIMEOUT)
        return ChildEnded(child.ending or End.TIMEOUT, ran=watch.ran(time.monotonic()))

    def _error_of(self, child: Child, raised: Raised, isolated: Isolated, ran: float) -> BaseException:
        origin = Origin(raised.error.traceback, raised.error.frame, raised.error.place)
        match raised.cause:
            case "timeout":
                return ChildEnded(End.TIMEOUT, origin, ran)
            case "canceled":
                return ChildEnded(End.CANCELED, origin)
            case "memory":
                child.ready = False  # spent: what is left of its memory may be little
                with self._changed:
                    self._metrics.child_killed("memory")
                error = over_memory(isolated.memory or 0)
                set_origin(error, origin)
                return error
            case _:
                return unpack(raised.error)

    def _end_of(self, child: Child, isolated: Isolated) -> Exception:
        """What it means that a child is gone."""
        child.ready = False
        if child.ending is not None:
            return ChildEnded(child.ending)
        child.kill()  # it may have closed its end without ending
        death = child.reap()
        if death.out_of_memory:
            with self._changed:
                self._metrics.child_killed("memory")
        return died(death, isolated.memory)


class _NotBegun(Exception):  # noqa: N818 - a signal inside this module
    """The child had died before it was given a command."""


def _wrong(child: Child, problem: str) -> TransientCommandError:
    """What that child sends later is ignored."""
    child.ready = False  # spent
    return TransientCommandError(
        "CHILD_LOST", f"The child process of the handler sent a wrong message and is ended: {problem}."
    )


def _not_started(problem: str, error: CrossedError | None = None) -> TransientCommandError:
    failed = TransientCommandError(
        "CHILD_NOT_STARTED", f"The child process could not import the handlers: {problem}"
    )
    if error is not None:
        set_origin(failed, Origin(error.traceback, error.frame, error.place))
    return failed


def _log(fields: dict[str, object]) -> None:
    """Write a child's log record where the worker's own go, in the context of the command."""
    found = logging.getLogger(str(fields.get("name", "")))
    record = logging.makeLogRecord(fields)
    if found.isEnabledFor(record.levelno):
        found.handle(record)
