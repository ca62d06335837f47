"""What a handler is given beside its command: who it is, and what it may ask for.

An `async def` handler gets a HandlerContext whose methods are awaited; a `def` handler gets a
SyncHandlerContext whose methods block. That depends on the handler, not on the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_text
from commandbus.errors import CommandCanceled, InvalidArgumentError, InvalidOperationError, LeaseLost
from commandbus.store.op import Op
from commandbus.store.port import Store
from commandbus.store.records import CancelRequest, Claimed

if TYPE_CHECKING:
    from commandbus.worker.transactional import Unit


class Desk:
    """What all handlers of one kind in a worker share."""

    __slots__ = ("requests", "session", "store", "worker")

    def __init__(
        self, store: Store, session: Any, worker: str, requests: dict[int, CancelRequest]
    ) -> None:
        self.store = store
        self.session = session
        self.worker = worker
        self.requests = requests
        """Commands, by sequence, that somebody wants canceled although they run."""


class _Context:
    __slots__ = ("_claimed", "_desk", "_unit", "max_attempts")

    def __init__(self, claimed: Claimed, max_attempts: int, desk: Desk) -> None:
        self._claimed = claimed
        self._desk = desk
        self._unit: Unit | None = None
        self.max_attempts = max_attempts

    @property
    def worker(self) -> str:
        """The name of the worker that runs the handler."""
        return self._desk.worker

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

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants this command canceled: end soon, with `raise_if_cancelled()`."""
        return self._claimed.seq in self._desk.requests

    def raise_if_cancelled(self) -> None:
        """Raise CommandCanceled when somebody wants this command canceled. Left uncaught it ends the
        command as CANCELED, with the reason that was given."""
        request = self._desk.requests.get(self._claimed.seq)
        if request is not None:
            raise CommandCanceled(request.reason)

    @property
    def connection(self) -> Any:
        """The connection that a transactional handler's effects belong on. Do not commit it: it is
        committed with the outcome."""
        return self._transactional("connection").connection

    @property
    def bus(self) -> Any:
        """A bus inside the transaction of a transactional handler: what it sends exists when, and
        only when, the command completes."""
        return self._transactional("bus").bus

    def _transactional(self, what: str) -> Unit:
        if self._unit is None:
            raise InvalidOperationError(
                f"context.{what} is for transactional handlers; register this one with "
                "transactional=True, or use a connection or bus of your own."
            )
        return self._unit

    def _extend(self, seconds: Duration) -> Op[None]:
        wanted = as_seconds(seconds, "seconds", minimum=0.001)
        if (yield from self._desk.store.renew([self._claimed.lease_id], wanted)):
            raise self._lost()

    def _report(self, percent: float, message: str) -> Op[None]:
        if not 0 <= percent <= 100:
            raise InvalidArgumentError(f"percent must be between 0 and 100, not {percent!r}.")
        text = as_text(message, "message", longest=500) if message else ""
        claimed, store = self._claimed, self._desk.store
        if not (yield from store.report_progress(claimed.seq, claimed.lease_id, float(percent), text)):
            raise self._lost()

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"The lease on command {self._claimed.command_id} is gone; another worker may run it. "
            "Stop here: nothing that this attempt reports will be recorded."
        )


class HandlerContext(_Context):
    """For `async def` handlers."""

    __slots__ = ()

    async def extend_visibility(self, seconds: Duration) -> None:
        """Keep the command for at least `seconds` from now. Raises LeaseLost when it is too late."""
        await self._desk.session.run(self._extend(seconds))

    async def progress(self, percent: float, message: str = "") -> None:
        """Say how far the command is, for its record. Raises LeaseLost when it is too late."""
        await self._desk.session.run(self._report(percent, message))


class SyncHandlerContext(_Context):
    """For `def` handlers."""

    __slots__ = ()

    def extend_visibility(self, seconds: Duration) -> None:
        """Keep the command for at least `seconds` from now. Raises LeaseLost when it is too late."""
        self._desk.session.run(self._extend(seconds))

    def progress(self, percent: float, message: str = "") -> None:
        """Say how far the command is, for its record. Raises LeaseLost when it is too late."""
        self._desk.session.run(self._report(percent, message))
