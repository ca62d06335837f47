"""Sessions: the only code of this engine that waits for ops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from commandbus.engines.postgres.conduct import Steps, conduct
from commandbus.engines.postgres.connections import AsyncLine, Line
from commandbus.engines.postgres.pools import AsyncSource, Source
from commandbus.engines.postgres.sharing import AsyncSharedLane, SharedLane
from commandbus.engines.postgres.sleepers import LISTEN_SECONDS
from commandbus.engines.postgres.statements import Listening, Shared
from commandbus.store.op import Log, Op, Rows, Wake

if TYPE_CHECKING:
    from commandbus.engines.postgres.engine import PostgresEngine

T = TypeVar("T")


class PostgresSession:
    """For threads."""

    def __init__(
        self,
        engine: PostgresEngine,
        source: Callable[[Op[Any] | None], Source],
        shared: Callable[[], Source],
        *,
        own: bool = False,
    ) -> None:
        self._engine, self._own = engine, own
        self._source, self._shared = source, shared
        self._lane = SharedLane(self._run_alone)

    def run(self, op: Op[T], *, read: bool = False) -> T:
        wakes: list[Wake | Log] = []
        line = Line(self._source(op), self._engine, own=self._own)
        try:
            result = self._perform(conduct(op, wakes, read=read), line)
        finally:
            if line.in_use:
                line.release()
        self._engine.told(wakes, read)
        return result

    def _perform(self, steps: Steps[T], line: Line) -> T:
        try:
            statement = next(steps)
            while True:
                try:
                    if isinstance(statement, Listening):
                        self._engine.store.sleepers.listening.wait(LISTEN_SECONDS)
                        rows: Rows = ()
                    elif isinstance(statement, Shared) and not line.in_use:
                        rows = self._lane.run(statement)
                    else:
                        rows = line.execute(statement)
                except Exception as error:  # the op decides; unhandled, it comes straight back
                    statement = steps.throw(error)
                else:
                    statement = steps.send(rows)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    def _run_alone(self, statement: Shared) -> Rows:
        line = Line(self._shared(), self._engine)
        try:
            return line.execute(statement)
        finally:
            line.release()


class AsyncPostgresSession:
    """For asyncio."""

    def __init__(
        self,
        engine: PostgresEngine,
        source: Callable[[Op[Any] | None], AsyncSource],
        shared: Callable[[], AsyncSource],
        *,
        own: bool = False,
    ) -> None:
        self._engine, self._own = engine, own
        self._source, self._shared = source, shared
        self._lanes: dict[asyncio.AbstractEventLoop, AsyncSharedLane] = {}

    async def run(self, op: Op[T], *, read: bool = False) -> T:
        if not self._engine.is_awaiting:
            # The bus was opened for threads, and this is an `async def` handler of one of its workers.
            return await asyncio.to_thread(self._engine.session.run, op, read=read)
        wakes: list[Wake | Log] = []
        line = AsyncLine(self._source(op), self._engine, own=self._own)
        try:
            result = await self._perform(conduct(op, wakes, read=read), line)
        finally:
            if line.in_use:
                await line.release()
        self._engine.told(wakes, read)
        return result

    async def _perform(self, steps: Steps[T], line: AsyncLine) -> T:
        try:
            statement = next(steps)
            while True:
                try:
                    if isinstance(statement, Listening):
                        listening = self._engine.store.sleepers.listening
                        await asyncio.to_thread(listening.wait, LISTEN_SECONDS)
                        rows: Rows = ()
                    elif isinstance(statement, Shared) and not line.in_use:
                        rows = await self._lane().run(statement)
                    else:
                        rows = await line.execute(statement)
                except Exception as error:  # the op decides; unhandled, it comes straight back
                    statement = steps.throw(error)
                else:
                    statement = steps.send(rows)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    def _lane(self) -> AsyncSharedLane:
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            running = {one: lane for one, lane in self._lanes.items() if not one.is_closed()}
            lane = AsyncSharedLane(self._run_alone)
            self._lanes = {**running, loop: lane}
        return lane

    async def _run_alone(self, statement: Shared) -> Rows:
        line = AsyncLine(self._shared(), self._engine)
        try:
            return await line.execute(statement)
        finally:
            await line.release()
