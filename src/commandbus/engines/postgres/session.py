"""Sessions: the only code of this engine that waits for ops."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from commandbus.engines.postgres.connections import Checkout
from commandbus.engines.postgres.pools import Sources
from commandbus.engines.postgres.sharing import AsyncSharedLane, SharedLane
from commandbus.engines.postgres.sleepers import LISTEN_SECONDS
from commandbus.engines.postgres.statements import Coalescing, Listening
from commandbus.engines.postgres.transaction_steps import in_transactions
from commandbus.store.op import Log, Op, Rows, Wake
from commandbus.store.waiting import finish

if TYPE_CHECKING:
    from commandbus.engines.postgres.engine import PostgresEngine

T = TypeVar("T")


Kind = Literal["pool", "reserve", "following"]
"""Which of the `Sources` a session uses; the pool is for senders and handlers."""


class _Session(ABC):
    def __init__(
        self, engine: PostgresEngine, kind: Kind, sources: Callable[[Op[Any] | None], Sources]
    ) -> None:
        """`sources` says where this runtime's connections come from, and closes the op that it is given
        when the bus is not open."""
        self._engine, self._kind, self._own = engine, kind, kind != "pool"
        self._sources = sources

    async def _run(self, op: Op[T], read: bool) -> T:
        wakes: list[Wake | Log] = []
        checkout = Checkout(getattr(self._sources(op), self._kind), self._engine, own=self._own)
        steps = in_transactions(op, wakes, read=read)
        result: Any = None
        try:
            statement = next(steps)
            while True:
                try:
                    if isinstance(statement, Listening):
                        if checkout.in_use:  # settles and renewals may need it meanwhile
                            checkout.release()
                        await self._listen(self._engine.store.sleepers.listening)
                        rows: Rows = ()
                    elif isinstance(statement, Coalescing) and not checkout.in_use:
                        rows = await self._share(statement)
                    else:
                        rows = await checkout.execute(statement)
                except Exception as error:  # the op decides; unhandled, it comes straight back
                    statement = steps.throw(error)
                else:
                    statement = steps.send(rows)
        except StopIteration as done:
            result = done.value
        finally:
            steps.close()
            if checkout.in_use:
                checkout.release()
        self._engine.hub.after_commit(wakes, read=read)
        return result  # type: ignore[no-any-return]

    async def _run_alone(self, statement: Coalescing) -> Rows:
        sources = self._sources(None)
        shared = getattr(sources, self._kind) if self._own else sources.senders
        checkout = Checkout(shared, self._engine)
        try:
            return await checkout.execute(statement)
        finally:
            checkout.release()

    @abstractmethod
    def _listen(self, listening: threading.Event) -> Coroutine[Any, Any, object]:
        """Wait until the process listens."""

    @abstractmethod
    def _share(self, statement: Coalescing) -> Coroutine[Any, Any, Rows]:
        """Execute a statement together with those of other senders."""


class PostgresSession(_Session):
    """For threads."""

    def __init__(self, engine: PostgresEngine, kind: Kind) -> None:
        super().__init__(engine, kind, engine.sources_of_threads)
        self._lane = SharedLane(lambda statement: finish(self._run_alone(statement)))

    def run(self, op: Op[T], *, read: bool = False) -> T:
        return finish(self._run(op, read))

    async def _listen(self, listening: threading.Event) -> None:
        listening.wait(LISTEN_SECONDS)

    async def _share(self, statement: Coalescing) -> Rows:
        return self._lane.run(statement)


class AsyncPostgresSession(_Session):
    """For asyncio."""

    def __init__(self, engine: PostgresEngine, kind: Kind) -> None:
        super().__init__(engine, kind, engine.sources_of_loop)
        self._lanes: dict[asyncio.AbstractEventLoop, AsyncSharedLane] = {}

    def run(self, op: Op[T], *, read: bool = False) -> Coroutine[Any, Any, T]:
        if self._engine.is_awaiting:
            return self._run(op, read)
        # The bus was opened for threads, and this is an `async def` handler of one of its workers.
        return asyncio.to_thread(self._engine.session.run, op, read=read)

    def _listen(self, listening: threading.Event) -> Coroutine[Any, Any, bool]:
        return asyncio.to_thread(listening.wait, LISTEN_SECONDS)

    def _share(self, statement: Coalescing) -> Coroutine[Any, Any, Rows]:
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            running = {one: lane for one, lane in self._lanes.items() if not one.is_closed()}
            lane = AsyncSharedLane(self._run_alone)
            self._lanes = {**running, loop: lane}
        return lane.run(statement)
