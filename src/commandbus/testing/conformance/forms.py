"""One test, two forms: commands by their names, and typed commands.

`as_typed` makes a harness send every command as the request of a contract and run every handler as a
typed command, so that a suite that is written with names proves the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import msgspec
import pytest

from commandbus.domain.command import CommandRecord, SendOptions, SendRequest, SendResult
from commandbus.domain.contract import command_type
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.harness import DOMAIN, Harness, RunningWorker
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.encoding import command_of_claimed
from commandbus.worker.handlers import Handler, HandlerRegistry

OPTIONS = ("retry", "timeout", "total_timeout", "breaker", "transactional", "errors")
"""Of a handler, what a typed command is declared with."""


class Value(msgspec.Struct):
    """The payload of every command in this form: what a test sends, as one field."""

    value: Any = None


class _Typed(Harness):
    """A harness whose callers speak of names, and which speaks of contracts."""

    def send(
        self, domain: Any = DOMAIN, command_type: str = "ship", data: Any = None, **kw: Any
    ) -> UUID:
        return self.send_result(domain, command_type, data, **kw).command_id

    def send_result(self, domain: Any, *args: Any, **options: Any) -> SendResult[Any]:
        return super().send_result(_request(domain, *args), **options)

    def send_many(self, requests: Iterable[SendRequest[Any]]) -> Sequence[SendResult[Any]]:
        return super().send_many(_typed(request) for request in requests)

    def find(self, command_id: UUID | str, domain: str = DOMAIN) -> CommandRecord[Any] | None:
        record = super().find(command_id, domain)
        return None if record is None else _unwrapped(record)

    def wait(self, *args: Any, **options: Any) -> CommandRecord[Any]:
        return _unwrapped(super().wait(*args, **options))

    @contextmanager
    def run_worker(
        self, registry: HandlerRegistry, *args: Any, **options: Any
    ) -> Iterator[RunningWorker]:
        with super().run_worker(_commands(registry), *args, **options) as running:
            yield running


def as_typed(harness: Harness) -> Harness:
    """The same harness, with everything in typed form."""
    harness.__class__ = type("TypedHarness", (_Typed, type(harness)), {})
    return harness


class BothForms:
    """To be inherited by a suite that holds in both forms."""

    @pytest.fixture(params=["named", "typed"])
    def open_bus(self, request: pytest.FixtureRequest, open_bus: OpenBus) -> Callable[..., Harness]:
        if request.param == "named":
            return open_bus
        return lambda **settings: as_typed(open_bus(**settings))


def _request(domain: Any, name: Any = None, data: Any = None) -> SendRequest[Any]:
    anything: Any = Any
    return command_type(domain, name, Value, anything)(value=data)


def _typed(request: Any) -> Any:
    if not isinstance(request, SendRequest):
        return request
    options: Any = {name: getattr(request, name) for name in SendOptions.__annotations__}
    return _request(request.domain, request.command_type, request.data).options(**options)


def _unwrapped(record: CommandRecord[Any]) -> CommandRecord[Any]:
    return msgspec.structs.replace(record, data=record.data["value"])


def _commands(registry: HandlerRegistry) -> HandlerRegistry:
    """The same handlers as typed commands, each in a registry of its own."""
    made = []
    for handler in registry:
        own = HandlerRegistry(handler.domain)
        own.layers = registry.layers
        options: Any = {name: getattr(handler, name) for name in OPTIONS}
        own.command(handler.command_type, **options)(_plain(handler))
        made.append(own)
    return HandlerRegistry.union(made)


def _plain(handler: Handler) -> Any:
    """A handler of (command, context) as a function of its payload."""
    function, is_async = handler.function, handler.is_async

    async def awaited(context: HandlerContext, value: Any = None) -> Any:
        return await function(command_of_claimed(context._claimed, value), context)

    def called(context: SyncHandlerContext, value: Any = None) -> Any:
        return function(command_of_claimed(context._claimed, value), context)

    return awaited if is_async else called
