"""Sessions run ops: the only code that waits on a store. Engines give out one for each runtime."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from commandbus.store.op import Op
from commandbus.store.port import Store
from commandbus.store.wakeup import WakeHub

T = TypeVar("T")


class Session(Protocol):
    """Runs an op in one transaction and returns its value; raises StoreUnavailable when it cannot.
    After StoreUnavailable it is unknown whether the op took effect, unless its message says."""

    def run(self, op: Op[T], *, read: bool = False) -> T: ...


class AsyncSession(Protocol):
    async def run(self, op: Op[T], *, read: bool = False) -> T: ...


class Engine(Protocol):
    """A store together with its sessions and wake-ups. Opening twice or closing twice is harmless."""

    @property
    def store(self) -> Store: ...
    @property
    def hub(self) -> WakeHub: ...
    @property
    def url(self) -> str: ...

    def open(self) -> None: ...
    def close(self) -> None: ...
    async def open_async(self) -> None: ...
    async def close_async(self) -> None: ...

    @property
    def session(self) -> Session: ...
    @property
    def async_session(self) -> AsyncSession: ...

    def within(self, connection: Any) -> Session:
        """A session inside the caller's own transaction on a blocking connection."""
        ...

    def within_async(self, connection: Any) -> AsyncSession:
        """A session inside the caller's own transaction on an asyncio connection."""
        ...
