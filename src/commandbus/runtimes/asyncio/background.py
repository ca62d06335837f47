"""`async with`: a worker or router runs in a task of its own while the block runs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from commandbus.domain.moment import Duration
from commandbus.runtimes.background import BackgroundBase, raise_first


class Background(BackgroundBase, ABC):
    """`async with worker:` runs it until the block ends, and stops it then. An error of its start is
    raised at the beginning of the block; one that ended it meanwhile at the end, unless the block
    raised one itself."""

    _task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run(self) -> None: ...

    @abstractmethod
    async def stop(self, timeout: Duration | None = None) -> None: ...

    async def __aenter__(self) -> Self:
        self._begun = begun = asyncio.Event()
        self._task = task = asyncio.create_task(self.run())
        task.add_done_callback(lambda _: begun.set())
        try:
            await begun.wait()
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            task.result()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task, self._begun = self._task, None, None
        assert task is not None
        try:
            if not task.done():
                await self.stop()
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled() and error is None:
            raise asyncio.CancelledError
        raise_first(error, None if task.cancelled() else task.exception())
