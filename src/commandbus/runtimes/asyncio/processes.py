"""Processes for asyncio programs: `ProcessManager` and `ProcessReplyRouter`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from commandbus.domain.command import SendRequest
from commandbus.domain.moment import Duration
from commandbus.domain.process.declaration import Process
from commandbus.operations import process_ends, processes
from commandbus.operations.flows import drive
from commandbus.operations.processes import ProcessStart
from commandbus.runtimes.asyncio.background import Background
from commandbus.runtimes.asyncio.bus import CommandBus, HandlerBus
from commandbus.runtimes.asyncio.facade import awaiting, awaiting_flow, awaiting_own
from commandbus.runtimes.processes import ManagerBase, RouterBase, S, stop_seconds
from commandbus.store.session import AsyncSession


class ProcessManager(ManagerBase[S]):
    """Starts processes of one declaration, and looks after them.

    `bus` is a bus, or one inside a caller's transaction; `process` a subclass of Process.
    """

    def __init__(self, bus: CommandBus | HandlerBus, process: type[Process[S]]) -> None:
        super().__init__(bus, process)

    def within(self, connection: Any) -> ProcessManager[S]:
        """The same manager inside the caller's own transaction: what is started exists when, and only
        when, that transaction commits."""
        return ProcessManager(self._bus.within(connection), self.process)

    if TYPE_CHECKING:  # the state is that of the declaration, which the generated methods cannot say

        async def start(
            self,
            state: S | None = None,
            *,
            process_id: UUID | str | None = None,
            batch_id: UUID | str | None = None,
        ) -> processes.StartProcessResult: ...
        async def start_many(
            self, states: Iterable[S | ProcessStart], *, batch_id: UUID | str | None = None
        ) -> list[processes.StartProcessResult]: ...
        async def create_batch(
            self,
            states: Iterable[S | ProcessStart],
            *,
            batch_id: UUID | str | None = None,
            name: str | None = None,
            custom_data: Any = None,
            on_complete: SendRequest[Any] | None = None,
        ) -> processes.CreateProcessBatchResult: ...
    else:
        start = awaiting_own(ManagerBase._start)
        start_many = awaiting_own(ManagerBase._start_many)
        create_batch = awaiting_own(ManagerBase._create_batch)
    list_processes = awaiting_own(ManagerBase._list_processes, read=True)
    get_process = awaiting(processes.get_process, read=True)
    get_process_audit = awaiting(processes.get_process_audit, read=True)
    wait = awaiting_flow(processes.wait_process)
    signal = awaiting(processes.signal_process)
    cancel = awaiting(processes.cancel_process)
    end = awaiting(process_ends.end_process)
    retry = awaiting(processes.retry_process)
    skip_compensation = awaiting(processes.skip_compensation)


class ProcessReplyRouter(Background, RouterBase[CommandBus]):
    """Drives processes on with the replies to their commands; `run()` works until `stop()`."""

    runtime = "asyncio"

    def _set_up(self) -> None:
        self._asyncio_loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._bells = [asyncio.Event() for _ in range(self.settings.concurrency)]

    async def run(self) -> None:
        """Route until `stop()` is called or this is canceled; each loop is a coroutine of its own."""
        self._prepare()
        self._has_begun()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(self._loops)):
                    group.create_task(self._work(number))
        except* Exception as group_error:  # one loop's end is the end of all
            raise group_error.exceptions[0] from None
        finally:
            try:
                await asyncio.shield(asyncio.to_thread(self._let_go))
            finally:
                self._stopped.set()

    async def stop(self, timeout: Duration | None = None) -> None:
        """Finish the transactions that are under way and return when everything has stopped, or
        after `timeout` seconds."""
        patience = stop_seconds(timeout)
        if self._stop():
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._stopped.wait()

    async def _work(self, number: int) -> None:
        session: AsyncSession = self._bus.engine.reserved_async_session
        await drive(
            self._loops[number].run(),
            lambda op, read: session.run(op, read=read),
            partial(_ring, self._bells[number]),
        )

    def _tell(self, number: int) -> None:
        self._asyncio_loop.call_soon_threadsafe(self._bells[number].set)


async def _ring(bell: asyncio.Event, seconds: float) -> float:
    """Wait for the bell, at most so long; zero seconds wait for nothing."""
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await bell.wait()
        bell.clear()
    return time.monotonic()
