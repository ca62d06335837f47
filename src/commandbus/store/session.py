"""Sessions run ops: the only code that waits on a store. Engines give out one for each runtime."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import msgspec

from commandbus.errors import InvalidOperationError, PermanentCommandError
from commandbus.store.op import Op
from commandbus.store.port import Store
from commandbus.store.wakeup import WakeHub

T = TypeVar("T")


class TransactionEnded(PermanentCommandError):  # noqa: N818 - what the handler did
    """A handler ended the transaction that the worker began for it."""

    def __init__(self) -> None:
        super().__init__(
            "TRANSACTION_ENDED",
            "The handler committed or rolled back context.connection itself, so its effects and its "
            "outcome cannot commit together. It is not run again, because what it committed stands. "
            "Leave COMMIT and ROLLBACK to the worker (`with context.connection.transaction():` makes a "
            "savepoint), check what was written, then retry or complete this command.",
        )


def bus_closed(whose: str) -> InvalidOperationError:
    """What a worker or router ends with when its bus is closed before it has stopped."""
    return InvalidOperationError(
        f"The bus was closed while {whose} was running, so nothing can be claimed or recorded any "
        "more; call its stop() before the bus is closed."
    )


class Session(Protocol):
    """Runs an op in one transaction and returns its value; raises StoreUnavailable when it cannot.
    After StoreUnavailable it is unknown whether the op took effect, unless its message says."""

    def run(self, op: Op[T], *, read: bool = False) -> T: ...


class AsyncSession(Protocol):
    def run(self, op: Op[T], *, read: bool = False) -> Coroutine[Any, Any, T]: ...


class Transaction(Protocol):
    """A transaction that a handler holds while it runs."""

    @property
    def connection(self) -> Any:
        """The driver's own connection, inside the transaction."""
        ...

    @property
    def session(self) -> Session:
        """Runs ops inside the transaction."""
        ...

    def record(self, op: Op[T]) -> T:
        """Run the op that is the last of the transaction. Raises TransactionEnded when the handler
        ended the transaction."""
        ...

    def commit(self) -> None:
        """After StoreUnavailable it is unknown whether it took effect."""
        ...

    def rollback(self) -> None:
        """Undo what was not committed, and let go of the connection; harmless after the commit. Raises
        TransactionEnded when the handler ended the transaction. Commit and rollback also remove
        everything that the handler left in its session."""
        ...


class AsyncTransaction(Protocol):
    @property
    def connection(self) -> Any: ...
    @property
    def session(self) -> AsyncSession: ...
    async def record(self, op: Op[T]) -> T: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class Demand(msgspec.Struct, frozen=True):
    """What a worker asks of its engine."""

    concurrency: int
    statement_timeout: float
    worker: str = ""
    """Its name: transactions of its handlers are known by it."""


class ConnectionUse(msgspec.Struct, frozen=True):
    """The connections of a process to its server."""

    busy: int
    """In the hands of senders and transactional handlers."""
    busy_max: int
    """How many of those there may be."""
    reserved: int
    """Held by the workers of the process: for claims, settles, renewals and services."""
    listening: int
    listener_failures: int = 0
    """How often the connection that listens was lost, or could not be made."""
    deaf: str | None = None
    """Why wake-ups of other processes have not been heard for a while, if so."""


class Engine(Protocol):
    """A store together with its sessions and wake-ups. Opening twice or closing twice is harmless."""

    @property
    def store(self) -> Store: ...
    @property
    def hub(self) -> WakeHub: ...
    @property
    def url(self) -> str: ...
    @property
    def identity(self) -> str:
        """Names the store, and no secret: the same in all processes of a machine that use it."""
        ...

    def open(self) -> None: ...
    def close(self) -> None: ...
    async def open_async(self) -> None: ...
    async def close_async(self) -> None: ...

    def check_open(self) -> None:
        """Raises NotOpen before the bus is opened and after it is closed; asks no server."""
        ...

    @property
    def session(self) -> Session: ...
    @property
    def async_session(self) -> AsyncSession: ...

    @property
    def reserved_session(self) -> Session:
        """For a worker's claims, settles and renewals: handlers and senders cannot keep it busy."""
        ...

    @property
    def reserved_async_session(self) -> AsyncSession: ...

    @property
    def service_session(self) -> Session:
        """For a worker's services: they come after its claims, settles and renewals when the server
        has too few connections."""
        ...

    @property
    def slots_max(self) -> int | None:
        """The largest concurrency that `check_demand` accepts; None for no limit."""
        ...

    def check_demand(self, demand: Demand) -> None:
        """Raises ConfigurationError, with the numbers, when a worker wants what cannot be given."""
        ...

    def meet(self, demand: Demand) -> None:
        """Make room for a worker that begins."""
        ...

    def cut(self, seconds: float) -> int:
        """Break the connections of the workers' own that have been waiting for an answer for so long,
        from any thread; returns how many there were."""
        ...

    def replace(self) -> None:
        """Go on with fresh connections; those in use are closed when they come back. From any
        thread."""
        ...

    def leave_behind(self, worker: str) -> None:
        """A worker has let go of its handlers: break the transactions of those that still run, and the
        workers' own statements that have no answer yet. Calls of others are left alone."""
        ...

    def loop_ended(self) -> None:
        """An event loop that `async def` handlers had under the thread runtime is gone."""
        ...

    @property
    def connections(self) -> ConnectionUse | None:
        """None where there is no server."""
        ...

    def begin(self, demand: Demand) -> Transaction:
        """A transaction for a `def` handler; only where the store's capabilities say so."""
        ...

    async def begin_async(self, demand: Demand) -> AsyncTransaction: ...

    def within(self, connection: Any) -> Session:
        """A session inside the caller's own transaction on a blocking connection."""
        ...

    def within_async(self, connection: Any) -> AsyncSession:
        """A session inside the caller's own transaction on an asyncio connection."""
        ...
