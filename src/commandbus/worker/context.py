"""What a handler is given beside its command: who it is, and what it may ask for.

An `async def` handler gets a HandlerContext whose methods are awaited; a `def` handler gets a
SyncHandlerContext whose methods block. That depends on the handler, not on the runtime.
"""

from __future__ import annotations

from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_text
from commandbus.errors import InvalidArgumentError, LeaseLost
from commandbus.store.op import Op
from commandbus.store.port import Store
from commandbus.store.records import Claimed
from commandbus.store.session import AsyncSession, Session


class _Context:
    __slots__ = ("_claimed", "_session", "_store", "max_attempts", "worker")

    def __init__(
        self, claimed: Claimed, max_attempts: int, worker: str, store: Store, session: object
    ) -> None:
        self._claimed = claimed
        self._store = store
        self._session = session
        self.max_attempts = max_attempts
        self.worker = worker

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1. Releases do not count, crashes do."""
        return self._claimed.attempt

    @property
    def crashes(self) -> int:
        """How many workers died while they had this command."""
        return self._claimed.crashes

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt - self.crashes >= self.max_attempts

    @property
    def fence(self) -> int:
        """A number that grows with every delivery: write it beside your own effects, and refuse
        those with a smaller one, to keep out a worker that lost its lease without knowing."""
        return self._claimed.lease_id

    def _extend(self, seconds: Duration) -> Op[None]:
        wanted = as_seconds(seconds, "seconds", minimum=0.001)
        if (yield from self._store.renew([self._claimed.lease_id], wanted)):
            raise self._lost()

    def _report(self, percent: float, message: str) -> Op[None]:
        if not 0 <= percent <= 100:
            raise InvalidArgumentError(f"percent must be between 0 and 100, not {percent!r}.")
        text = as_text(message, "message", longest=500) if message else ""
        claimed = self._claimed
        if not (
            yield from self._store.report_progress(claimed.seq, claimed.lease_id, float(percent), text)
        ):
            raise self._lost()

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"The lease on command {self._claimed.command_id} is gone; another worker may run it. "
            "Stop here: nothing that this attempt reports will be recorded."
        )


class HandlerContext(_Context):
    """For `async def` handlers."""

    __slots__ = ()
    _session: AsyncSession

    async def extend_visibility(self, seconds: Duration) -> None:
        """Keep the command for at least `seconds` from now. Raises LeaseLost when it is too late."""
        await self._session.run(self._extend(seconds))

    async def progress(self, percent: float, message: str = "") -> None:
        """Say how far the command is, for its record. Raises LeaseLost when it is too late."""
        await self._session.run(self._report(percent, message))


class SyncHandlerContext(_Context):
    """For `def` handlers."""

    __slots__ = ()
    _session: Session

    def extend_visibility(self, seconds: Duration) -> None:
        """Keep the command for at least `seconds` from now. Raises LeaseLost when it is too late."""
        self._session.run(self._extend(seconds))

    def progress(self, percent: float, message: str = "") -> None:
        """Say how far the command is, for its record. Raises LeaseLost when it is too late."""
        self._session.run(self._report(percent, message))
