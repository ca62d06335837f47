"""What a handler is given beside its command: who it is, and what it may ask for.

An `async def` handler gets a HandlerContext whose methods are awaited; a `def` handler gets a
SyncHandlerContext whose methods block. That depends on the handler, not on the runtime.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from commandbus.domain import payload
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_text
from commandbus.errors import InvalidArgumentError, LeaseLost
from commandbus.store.op import Op
from commandbus.store.port import Store
from commandbus.store.records import Claimed
from commandbus.store.session import AsyncSession, Session


class _Context:
    __slots__ = ("_claimed", "_recorded", "_session", "_store", "max_attempts", "worker")

    def __init__(
        self, claimed: Claimed, max_attempts: int, worker: str, store: Store, session: object
    ) -> None:
        self._claimed = claimed
        self._store = store
        self._session = session
        self._recorded: dict[str, str] | None = None
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

    def _look_up(self, name: str) -> Op[str | None]:
        """The recorded result of a step; all of them are read with the first one."""
        checked = as_text(name, "name of the step", longest=100)
        if self._recorded is None:
            self._recorded = yield from self._store.recorded_steps(self._claimed.seq)
        return self._recorded.get(checked)

    def _record(self, name: str, value: Any) -> Op[Any]:
        """Keep the result of a step, and see it as a replay would."""
        encoded = payload.encode(value, what=f"result of step {name!r}")
        claimed = self._claimed
        if not (yield from self._store.record_step(claimed.seq, claimed.lease_id, name, encoded)):
            raise self._lost()
        assert self._recorded is not None
        self._recorded[name] = encoded
        return payload.decode(encoded)

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

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, `def` or `async def`, and record its result under `name`: when the handler
        runs again, after a crash or a retry, the recorded result is returned and nothing is called.

        The result is JSON, and seen as such the first time too. Raises LeaseLost when it is too late
        to record it. A crash between the call and the record calls it again.
        """
        known = await self._session.run(self._look_up(name), read=True)
        if known is not None:
            return payload.decode(known)
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        return await self._session.run(self._record(name, value))


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

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function and record its result under `name`: when the handler runs again, after a
        crash or a retry, the recorded result is returned and nothing is called.

        The result is JSON, and seen as such the first time too. Raises LeaseLost when it is too late
        to record it. A crash between the call and the record calls it again.
        """
        known = self._session.run(self._look_up(name), read=True)
        if known is not None:
            return payload.decode(known)
        return self._session.run(self._record(name, function(*args, **kwargs)))
