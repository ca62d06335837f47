"""The types of the methods that take a request or names, and answer by what they were given.

The operations behind them are written once; here is what a type checker sees of them in each runtime.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar, Unpack, overload
from uuid import UUID

from commandbus.domain.command import CommandRecord, SendOptions, SendRequest, SendResult
from commandbus.domain.moment import Duration
from commandbus.domain.reply import Reply

R = TypeVar("R")
Awaited = Coroutine[Any, Any, R]


class AwaitedSend(Protocol):
    """See `commandbus.operations.sending.send`."""

    @overload
    def __call__(
        self, request: SendRequest[R], /, **options: Unpack[SendOptions]
    ) -> Awaited[SendResult[R]]: ...
    @overload
    def __call__(
        self, domain: str, command_type: str, data: Any = None, **options: Unpack[SendOptions]
    ) -> Awaited[SendResult[Any]]: ...


class BlockingSend(Protocol):
    """See `commandbus.operations.sending.send`."""

    @overload
    def __call__(self, request: SendRequest[R], /, **options: Unpack[SendOptions]) -> SendResult[R]: ...
    @overload
    def __call__(
        self, domain: str, command_type: str, data: Any = None, **options: Unpack[SendOptions]
    ) -> SendResult[Any]: ...


class AwaitedRequest(Protocol):
    """See `commandbus.operations.waiting.request`."""

    @overload
    def __call__(
        self, request: SendRequest[R], /, *, timeout: Duration, **options: Unpack[SendOptions]
    ) -> Awaited[R]: ...
    @overload
    def __call__(
        self,
        domain: str,
        command_type: str,
        data: Any = None,
        *,
        timeout: Duration,
        **options: Unpack[SendOptions],
    ) -> Awaited[Reply]: ...


class BlockingRequest(Protocol):
    """See `commandbus.operations.waiting.request`."""

    @overload
    def __call__(
        self, request: SendRequest[R], /, *, timeout: Duration, **options: Unpack[SendOptions]
    ) -> R: ...
    @overload
    def __call__(
        self,
        domain: str,
        command_type: str,
        data: Any = None,
        *,
        timeout: Duration,
        **options: Unpack[SendOptions],
    ) -> Reply: ...


class AwaitedWait(Protocol):
    """See `commandbus.operations.waiting.wait`."""

    @overload
    def __call__(
        self, sent: SendResult[R], /, timeout: Duration | None = None
    ) -> Awaited[CommandRecord[R]]: ...
    @overload
    def __call__(
        self,
        command_id: CommandRecord[Any] | UUID | str,
        timeout: Duration | None = None,
        *,
        domain: str | None = None,
    ) -> Awaited[CommandRecord[Any]]: ...


class BlockingWait(Protocol):
    """See `commandbus.operations.waiting.wait`."""

    @overload
    def __call__(self, sent: SendResult[R], /, timeout: Duration | None = None) -> CommandRecord[R]: ...
    @overload
    def __call__(
        self,
        command_id: CommandRecord[Any] | UUID | str,
        timeout: Duration | None = None,
        *,
        domain: str | None = None,
    ) -> CommandRecord[Any]: ...


class AwaitedGet(Protocol):
    """See `commandbus.operations.commands.get_command`."""

    @overload
    def __call__(self, sent: SendResult[R], /) -> Awaited[CommandRecord[R] | None]: ...
    @overload
    def __call__(
        self, command_id: CommandRecord[Any] | UUID | str, *, domain: str | None = None
    ) -> Awaited[CommandRecord[Any] | None]: ...


class BlockingGet(Protocol):
    """See `commandbus.operations.commands.get_command`."""

    @overload
    def __call__(self, sent: SendResult[R], /) -> CommandRecord[R] | None: ...
    @overload
    def __call__(
        self, command_id: CommandRecord[Any] | UUID | str, *, domain: str | None = None
    ) -> CommandRecord[Any] | None: ...
