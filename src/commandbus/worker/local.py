"""A context for unit tests of handlers: no bus, no worker, no store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, Unpack, cast, overload

from commandbus.domain.command import SendOptions, SendRequest, SendResult, as_request
from commandbus.domain.ids import new_id
from commandbus.store.op import Op, drive
from commandbus.store.port import Store
from commandbus.store.records import CancelRequest, Claimed
from commandbus.worker.context import HandlerContext, HandlerServices, SyncHandlerContext

T = TypeVar("T")

SEQ = 1


class _Store:
    """What handlers reach through their context, kept in memory; the lease never ends."""

    def __init__(self) -> None:
        self.steps: dict[str, str] = {}

    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        yield from ()
        return []

    def report_progress(self, seq: int, lease_id: int, percent: float, message: str) -> Op[bool]:
        yield from ()
        return True

    def recorded_steps(self, seq: int) -> Op[dict[str, str]]:
        yield from ()
        return dict(self.steps)

    def record_step(self, seq: int, lease_id: int, name: str, result: str) -> Op[bool]:
        yield from ()
        self.steps[name] = result
        return True


def _run(op: Op[T]) -> T:
    return drive(op, lambda statement: (), [])


class _Session:
    def run(self, op: Op[T], *, read: bool = False) -> T:
        return _run(op)


class _AsyncSession:
    async def run(self, op: Op[T], *, read: bool = False) -> T:
        return _run(op)


class LocalBus:
    """What `context.bus` and `context.send` of a context for tests send with: requests are kept, and
    nothing else happens."""

    def __init__(self) -> None:
        self.sent: list[SendRequest[Any]] = []

    def send(
        self,
        domain: str | SendRequest[Any],
        command_type: str | None = None,
        data: Any = None,
        **options: Unpack[SendOptions],
    ) -> SendResult[Any]:
        request = as_request(domain, command_type, data, options)
        self.sent.append(request)
        return SendResult(new_id(), request.domain)


class AsyncLocalBus(LocalBus):
    async def send(self, *args: Any, **options: Any) -> SendResult[Any]:  # type: ignore[override]
        return super().send(*args, **options)


class LocalHandlerContext(HandlerContext):
    """A context for tests of `async def` functions."""

    __slots__ = ()

    @property
    def sent(self) -> list[SendRequest[Any]]:
        """The requests that were sent with it, in order."""
        sent: list[SendRequest[Any]] = self._services.bus.sent
        return sent


class LocalSyncHandlerContext(SyncHandlerContext):
    """A context for tests of `def` functions."""

    __slots__ = ()

    @property
    def sent(self) -> list[SendRequest[Any]]:
        """The requests that were sent with it, in order."""
        sent: list[SendRequest[Any]] = self._services.bus.sent
        return sent


@overload
def local_context(
    is_async: Literal[True], *, attempt: int = ..., max_attempts: int = ..., canceled: bool = ...
) -> LocalHandlerContext: ...
@overload
def local_context(
    is_async: Literal[False], *, attempt: int = ..., max_attempts: int = ..., canceled: bool = ...
) -> LocalSyncHandlerContext: ...
@overload
def local_context(
    is_async: bool, *, attempt: int = ..., max_attempts: int = ..., canceled: bool = ...
) -> LocalHandlerContext | LocalSyncHandlerContext: ...
def local_context(
    is_async: bool, *, attempt: int = 1, max_attempts: int = 3, canceled: bool = False
) -> LocalHandlerContext | LocalSyncHandlerContext:
    """A context whose steps run once each, whose lease never ends, whose progress goes nowhere, and
    whose `sent` lists what was sent."""
    command_id = new_id()
    claimed = Claimed(
        seq=SEQ,
        lease_id=1,
        domain="test",
        command_type="test",
        command_id=command_id,
        data="null",
        correlation_id=command_id,
        priority=5,
        max_attempts=max_attempts,
        created_at=0,
        attempt=attempt,
        crashes=0,
        releases=0,
    )
    session: Any = _AsyncSession() if is_async else _Session()
    requests = {SEQ: CancelRequest("canceled by the test")} if canceled else {}
    bus = AsyncLocalBus() if is_async else LocalBus()
    services = HandlerServices(cast("Store", _Store()), session, "test", requests, bus)
    kind = LocalHandlerContext if is_async else LocalSyncHandlerContext
    return kind(claimed, max_attempts, services)
