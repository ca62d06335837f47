"""The child's side of a handler's context: what it asks for is done by the worker.

The contexts themselves are those of every handler. Their ops run here against a store whose statements
are questions to the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar, Unpack, cast
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.command import (
    CommandRecord,
    SendOptions,
    SendRequest,
    SendResult,
    TypedRequest,
    as_request,
)
from commandbus.domain.moment import as_seconds
from commandbus.domain.retry import RetryPolicy, header_of
from commandbus.domain.unique import Unique
from commandbus.errors import InvalidOperationError, PermanentCommandError
from commandbus.store.op import Op, Statement, drive
from commandbus.store.port import Store
from commandbus.store.records import CancelRequest, CommandFilter
from commandbus.worker.context import HandlerServices

T = TypeVar("T")
AskFor = Callable[[str, Any, Any], Any]
"""Ask the worker: a method, its arguments, and the type of the answer."""


class Sent(msgspec.Struct, frozen=True):
    """The answer to a send."""

    command_id: UUID
    domain: str
    duplicate: bool


class Sending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request in plain values. Payload and headers are JSON text, so that they arrive unaltered."""

    domain: str
    command_type: str
    data: str
    headers: str | None = None
    due_at: datetime | None = None
    expires_at: datetime | None = None
    others: dict[str, Any] = {}
    """The other options of `send` that were given, as JSON has them."""

    @classmethod
    def of(cls, request: SendRequest[Any]) -> Sending:
        others: dict[str, Any] = {}
        for name in SendOptions.__annotations__.keys() - {"headers", "due_at", "expires_at"}:
            value = getattr(request, name)
            if isinstance(value, UUID):
                value = str(value)
            elif isinstance(value, timedelta):
                value = value.total_seconds()
            if value is not None and value != ():
                others[name] = value
        if (unique := request.unique) is not None:
            window = None if unique.window is None else as_seconds(unique.window, "window")
            others["unique"] = {
                "window": window,
                "states": list(unique.states),
                "on_conflict": unique.on_conflict,
            }
        if request.retry is not None:
            others["retry"] = {"max_attempts": request.retry.max_attempts, **header_of(request.retry)}
        headers = request.headers
        return cls(
            domain=request.domain,
            command_type=request.command_type,
            data=request.text
            if isinstance(request, TypedRequest)
            else payload.encode(request.data, bytes_max=payload.UNLIMITED),
            headers=None if headers is None else payload.encode(headers, what="headers"),
            due_at=request.due_at,
            expires_at=request.expires_at,
            others=others,
        )

    def options(self) -> dict[str, Any]:
        """The options of `send`, on the other side."""
        options = dict(self.others)
        if self.due_at is not None:
            options["due_at"] = self.due_at
        if self.expires_at is not None:
            options["expires_at"] = self.expires_at
        if self.headers is not None:
            options["headers"] = payload.decode(self.headers)
        if "unique" in options:
            unique = options["unique"]
            options["unique"] = Unique(**{**unique, "states": tuple(unique["states"])})
        if "retry" in options:
            options["retry"] = RetryPolicy(**options["retry"])
        return options


class _Store:
    """What handlers reach through their context. The worker knows which command asks."""

    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        (lost,) = yield Statement("renew", (seconds, bool))
        return list(lease_ids) if lost else []

    def report_progress(self, seq: int, lease_id: int, percent: float, message: str) -> Op[bool]:
        (held,) = yield Statement("progress", ((percent, message), bool))
        return bool(held)

    def recorded_steps(self, seq: int) -> Op[dict[str, str]]:
        (steps,) = yield Statement("steps", (None, dict[str, str]))
        return cast("dict[str, str]", steps)

    def record_step(self, seq: int, lease_id: int, name: str, result: str) -> Op[bool]:
        (held,) = yield Statement("record", ((name, result), bool))
        return bool(held)

    def query(self, wanted: CommandFilter) -> Op[list[CommandRecord[Any]]]:
        (found,) = yield Statement("query", (wanted, list[CommandRecord[Any]]))
        return cast("list[CommandRecord[Any]]", found)


class _Session:
    def __init__(self, ask: AskFor) -> None:
        self._ask = ask

    def run(self, op: Op[T], *, read: bool = False) -> T:
        return drive(op, lambda statement: [self._ask(statement.sql, *statement.params)], [])


class _AsyncSession(_Session):
    # In a thread, so that the handler's loop is free while the store works.
    async def run(self, op: Op[T], *, read: bool = False) -> T:  # type: ignore[override]
        return await asyncio.to_thread(super().run, op)


class ChildBus:
    """`context.bus` in a child process."""

    def __init__(self, ask: AskFor) -> None:
        self._ask = ask

    def send(
        self,
        domain: str | SendRequest[Any],
        command_type: str | None = None,
        data: Any = None,
        **options: Unpack[SendOptions],
    ) -> SendResult[Any]:
        request = as_request(domain, command_type, data, options)
        sent: Sent = self._ask("send", Sending.of(request), Sent)
        contract = request.contract if isinstance(request, TypedRequest) else None
        return SendResult(sent.command_id, sent.domain, sent.duplicate, contract)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InvalidOperationError(
            f"context.bus.{name} is not there in a child process, only context.bus.send: open a bus of "
            "your own in the module of the handler, or leave isolation= out."
        )


class AsyncChildBus(ChildBus):
    async def send(self, *args: Any, **options: Any) -> SendResult[Any]:  # type: ignore[override]
        return await asyncio.to_thread(super().send, *args, **options)


class _NothingProvided(dict[Any, Any]):
    def get(self, kind: Any, default: Any = None) -> NoReturn:
        raise PermanentCommandError(
            "NOT_PROVIDED",
            f"{getattr(kind, '__name__', kind)} stays in the worker process, and this handler runs in "
            "a child: create it in a function of the handler's module under functools.cache.",
        )


def _within(connection: Any) -> NoReturn:
    raise InvalidOperationError(
        "context.complete is not possible in a child process, whose connections are not those of the "
        'worker: return the result, or register the handler without isolation="process".'
    )


def child_services(
    ask: AskFor, worker: str, is_async: bool, requests: dict[int, CancelRequest]
) -> HandlerServices:
    """What the contexts of a child's handlers share."""
    session = (_AsyncSession if is_async else _Session)(ask)
    bus = (AsyncChildBus if is_async else ChildBus)(ask)
    return HandlerServices(
        cast("Store", _Store()),
        session,
        worker,
        requests,
        bus,
        _within,
        provided=_NothingProvided(),
    )
