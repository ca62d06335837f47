"""`crash_every_await`: one trial for each point at which a handler can crash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import count
from typing import Any, Generic, TypeVar, overload

from commandbus.domain.command import CommandRecord
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.runtimes.threads.bus import SyncCommandBus
from commandbus.settings import WorkerSettings
from commandbus.testing.clock import FakeClock
from commandbus.testing.crashing import Crash, CrashPlan
from commandbus.testing.draining import drain
from commandbus.worker.handlers import HandlerRegistry

Bus = TypeVar("Bus", CommandBus, SyncCommandBus)

LIMIT = 1_000


class Trial(Generic[Bus]):
    """A bus of its own on which handlers crash once, at one point.

    As a context manager it gives the bus, open; an assertion that fails inside says where the crash
    was.
    """

    def __init__(self, number: int, make_bus: Callable[[FakeClock], Bus]) -> None:
        self.clock = FakeClock()
        self.bus: Bus = make_bus(self.clock)
        self._plan = CrashPlan(number)
        self._drained = False

    @property
    def crashed_at(self) -> str | None:
        """Where it crashed; None before that, and in the last trial, which has no crash."""
        return self._plan.where

    def drain(self, registry: HandlerRegistry, domains: str | Iterable[str] | None = None) -> Any:
        """As `drain`; after the crash the lease runs out, and everything is carried out to the end.
        `await` it with a CommandBus."""
        self._drained = True
        if isinstance(self.bus, CommandBus):
            return self._awaiting(self.bus, registry, domains)
        try:
            return drain(self.bus, registry, domains, wrap=self._plan.wrap)
        except Crash:
            self._outlast_the_lease()
        return drain(self.bus, registry, domains)

    async def _awaiting(
        self, bus: CommandBus, registry: HandlerRegistry, domains: str | Iterable[str] | None
    ) -> list[CommandRecord]:
        try:
            return await drain(bus, registry, domains, wrap=self._plan.wrap)
        except Crash:
            self._outlast_the_lease()
        again: Awaitable[list[CommandRecord]] = drain(bus, registry, domains)
        return await again

    def _outlast_the_lease(self) -> None:
        self.clock.advance(WorkerSettings().visibility_timeout + 1)

    def __enter__(self) -> Bus:
        self.bus.engine.open()
        return self.bus

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.bus.engine.close()
        if error is not None:
            error.add_note(f"in the trial with a crash at: {self.crashed_at or 'no point'}")
        else:
            assert self._drained, "call trial.drain(registry) inside the block, or nothing can crash"


@overload
def crash_every_await(make_bus: None = None, *, limit: int = LIMIT) -> Iterator[Trial[CommandBus]]: ...


@overload
def crash_every_await(
    make_bus: Callable[[FakeClock], Bus], *, limit: int = LIMIT
) -> Iterator[Trial[Bus]]: ...


def crash_every_await(
    make_bus: Callable[[FakeClock], Any] | None = None, *, limit: int = LIMIT
) -> Iterator[Trial[Any]]:
    """Trials of which each crashes one point later than the one before; the last one does not crash.

    `make_bus` gets the clock of the trial and returns a bus on an empty store; without it, that is
    `CommandBus("memory://")`. See `commandbus.testing.crashing` for the points. Raises AssertionError
    after `limit` trials.
    """
    for number in count(1):
        assert number <= limit, (
            f"there are more than {limit} points; raise limit=, or test less at once"
        )
        trial = Trial(number, make_bus or _in_memory)
        yield trial
        if trial.crashed_at is None:
            return


def _in_memory(clock: FakeClock) -> CommandBus:
    return CommandBus("memory://", clock=clock)
