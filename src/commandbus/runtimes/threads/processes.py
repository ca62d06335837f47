"""Processes for programs without an event loop: `SyncProcessManager` and `SyncProcessReplyRouter`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from commandbus.domain.command import SendRequest
from commandbus.domain.moment import Duration
from commandbus.domain.process.declaration import Process
from commandbus.operations import process_ends, processes
from commandbus.operations.flows import drive
from commandbus.operations.processes import ProcessStart
from commandbus.runtimes.processes import ManagerBase, RouterBase, S, stop_seconds
from commandbus.runtimes.threads.background import Background
from commandbus.runtimes.threads.bus import SyncCommandBus, SyncHandlerBus
from commandbus.runtimes.threads.facade import blocking, blocking_flow, blocking_own
from commandbus.runtimes.threads.waiting import take
from commandbus.store.session import Session
from commandbus.store.waiting import done, finish


class SyncProcessManager(ManagerBase[S]):
    """Starts processes of one declaration, and looks after them.

    `bus` is a bus, or one inside a caller's transaction; `process` a subclass of Process.
    """

    def __init__(self, bus: SyncCommandBus | SyncHandlerBus, process: type[Process[S]]) -> None:
        super().__init__(bus, process)

    def within(self, connection: Any) -> SyncProcessManager[S]:
        """The same manager inside the caller's own transaction: what is started exists when, and only
        when, that transaction commits."""
        return SyncProcessManager(self._bus.within(connection), self.process)

    if TYPE_CHECKING:  # the state is that of the declaration, which the generated methods cannot say

        def start(
            self,
            state: S | None = None,
            *,
            process_id: UUID | str | None = None,
            batch_id: UUID | str | None = None,
        ) -> processes.StartProcessResult: ...
        def start_many(
            self, states: Iterable[S | ProcessStart], *, batch_id: UUID | str | None = None
        ) -> list[processes.StartProcessResult]: ...
        def create_batch(
            self,
            states: Iterable[S | ProcessStart],
            *,
            batch_id: UUID | str | None = None,
            name: str | None = None,
            custom_data: Any = None,
            on_complete: SendRequest[Any] | None = None,
        ) -> processes.CreateProcessBatchResult: ...
    else:
        start = blocking_own(ManagerBase._start)
        start_many = blocking_own(ManagerBase._start_many)
        create_batch = blocking_own(ManagerBase._create_batch)
    list_processes = blocking_own(ManagerBase._list_processes, read=True)
    get_process = blocking(processes.get_process, read=True)
    get_process_audit = blocking(processes.get_process_audit, read=True)
    wait = blocking_flow(processes.wait_process)
    signal = blocking(processes.signal_process)
    cancel = blocking(processes.cancel_process)
    end = blocking(process_ends.end_process)
    retry = blocking(processes.retry_process)
    skip_compensation = blocking(processes.skip_compensation)


class SyncProcessReplyRouter(Background, RouterBase[SyncCommandBus]):
    """Drives processes on with the replies to their commands; `run()` blocks until `stop()`."""

    runtime = "threads"

    def _set_up(self) -> None:
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._bells = [_Bell() for _ in range(self.settings.concurrency)]
        self._serving = {threading.get_ident()}

    def run(self) -> None:
        """Route until `stop()` is called, or until KeyboardInterrupt; each loop in its own thread."""
        self._prepare()
        self._has_begun()
        helpers = [
            threading.Thread(
                target=self._serve, args=(number,), name=f"{self.name}-{number}", daemon=True
            )
            for number in range(1, len(self._loops))
        ]
        try:
            for helper in helpers:
                helper.start()
            self._serve(0)
        except KeyboardInterrupt:
            self._ask_to_stop()
        finally:
            for helper in helpers:
                helper.join()
            self._let_go()
            self._ended.set()
        if self._failure is not None:
            raise self._failure

    def stop(self, timeout: Duration | None = None) -> None:
        """Finish the transactions that are under way and return when everything has stopped, or
        after `timeout` seconds; at once if a thread of `run()` calls it, as a signal handler does."""
        seconds = stop_seconds(timeout)
        if self._stop() and threading.get_ident() not in self._serving:
            self._ended.wait(seconds)

    def _serve(self, number: int) -> None:
        self._serving.add(threading.get_ident())
        session: Session = self._bus.engine.reserved_session
        try:
            finish(
                drive(
                    self._loops[number].run(),
                    lambda op, read: done(session.run(op, read=read)),
                    self._bells[number].wait,
                )
            )
        except Exception as error:  # one loop's end is the end of all; run() raises it
            self._failure = self._failure or error
            self._ask_to_stop()

    def _tell(self, number: int) -> None:
        self._bells[number].ring()


class _Bell:
    """As an Event of which each wait takes all rings so far; but a signal handler may ring it while
    the thread that it interrupts waits or rings. An Event has a lock that such a thread may hold."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        if self._rings.empty():
            self._rings.put(None)

    async def wait(self, seconds: float) -> float:
        """Until it rings, at most so long; zero seconds wait for nothing."""
        if seconds > 0:
            with suppress(queue.Empty):
                take(self._rings, seconds)
        return time.monotonic()
