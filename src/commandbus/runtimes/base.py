"""The base of the buses of both runtimes."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import partial, update_wrapper
from typing import Any, Protocol, Self, TypeVar, Unpack

from commandbus.connect import create_engine, create_pgmq_engine
from commandbus.domain.breaker import CircuitBreaker
from commandbus.domain.breaker_board import BreakerBoard
from commandbus.domain.command import SEND_DEFAULTS
from commandbus.domain.guard import Guard
from commandbus.domain.moment import Clock, system_clock
from commandbus.domain.names import as_actor
from commandbus.domain.shown import expanded, shows_options
from commandbus.errors import ConfigurationError
from commandbus.operations.breakers import TOPIC as BREAKERS
from commandbus.operations.scope import Scope
from commandbus.settings import BusOptions, BusSettings, defaults_of, resolve_url, settings_of
from commandbus.store.op import Op, Undone
from commandbus.store.session import Engine
from commandbus.store.wakeup import WakeHub
from commandbus.worker.handlers import HandlerRegistry
from commandbus.worker.health import HealthStatus

S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Host(Protocol[S_co]):
    """What operations as methods hang on: a bus, or something over one, with its kind of session."""

    @property
    def scope(self) -> Scope: ...
    @property
    def session(self) -> S_co: ...
    @property
    def hub(self) -> WakeHub: ...


REPEATS_MAX = 3


async def repeat(undone: Undone, build: partial[Op[T]], run: Callable[[Op[T]], Awaitable[T]]) -> T:
    """Build and run an operation again that was undone. Raises `undone` at once when it has an iterator
    among its arguments, which has been used up."""
    if any(isinstance(value, Iterator) for value in (*build.args, *build.keywords.values())):
        raise undone
    for _ in range(REPEATS_MAX):
        try:
            return await run(build())
        except Undone as again:
            undone = again
    raise undone


def shown_as(build: Callable[..., Any]) -> Callable[[F], F]:
    """Give a method the name and documentation of the operation behind it, and the signature that its
    callers use."""

    def show(method: F) -> F:
        update_wrapper(method, build)
        method.__signature__ = public_signature(build)  # type: ignore[attr-defined]
        return method

    return show


def public_signature(build: Callable[..., Any]) -> inspect.Signature:
    """The signature of a method: `self` in place of the first parameter, each keyword of a TypedDict
    by itself, and the result in place of the op that gives it."""
    signature = inspect.signature(build)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shown = [own, *expanded(build, list(signature.parameters.values())[1:], SEND_DEFAULTS)]
    result = _RESULT.match(str(signature.return_annotation))
    return signature.replace(
        parameters=shown,
        return_annotation=signature.return_annotation if result is None else result[1],
    )


_RESULT = re.compile(r"(?:Op|Flow)\[(.*)\]$")


def tracing_module() -> Any:
    """Imported when it is switched on: it needs the package opentelemetry-api."""
    try:
        from commandbus.observe import tracing
    except ImportError:
        raise ConfigurationError(
            "tracing needs the package opentelemetry-api; "
            "`pip install 'durable-commandbus[otel]'` brings it."
        ) from None
    return tracing


def scope_with(scope: Scope, registry: HandlerRegistry | None) -> Scope:
    """A scope that knows which payloads handlers take."""
    return scope if registry is None else replace(scope, check_payload=registry.check_payload)


class Acting:
    """Something with a scope that can act in a person's name."""

    scope: Scope

    def acting(self, actor: str) -> Self:
        """The same bus in the name of `actor`: every operator action, its record and its link in the
        ledger commit together. Without `acting`, the actor is "program", and sends and signals are
        not operator actions."""
        view = copy(self)
        view.scope = replace(self.scope, actor=as_actor(actor))
        return view


class BusBase(ABC, Acting):
    """A bus that is not open yet.

    `url` is the argument, else COMMANDBUS_URL, else sqlite:///commandbus.db in the current folder.
    With `migrate`, a store that does not create its schema at open is brought to this version then.
    `listen_url`, else COMMANDBUS_LISTEN_URL, is the URL of a direct connection to the same PostgreSQL
    database, by which workers hear of new work while `url` goes through a pooler.
    Its settings are the fields of BusSettings, as arguments or as `settings=BusSettings(…)`.
    """

    @shows_options(defaults_of(BusSettings))
    def __init__(
        self,
        url: str | None = None,
        *,
        migrate: bool = False,
        transport: str | None = None,
        listen_url: str | None = None,
        clock: Clock = system_clock,
        settings: BusSettings | None = None,
        **options: Unpack[BusOptions],
    ) -> None:
        self.settings = settings_of(BusSettings, settings, options)
        self.engine: Engine = create_engine(
            resolve_url(url), migrate=migrate, transport=transport, listen_url=listen_url, clock=clock
        )
        self.scope = Scope(self.engine.store, self.settings, clock=clock)
        if self.settings.tracing is not None:
            self.scope.carry = tracing_module().carry
        self.hub = self.engine.hub
        self.routers: dict[str, HealthStatus] = {}
        """The health of the process routers that run over this bus, by name."""
        self.breakers = BreakerBoard(partial(self.hub.wake, BREAKERS, None, "breaker"))

    def breaker(self, target: str | CircuitBreaker) -> Guard:
        """Guard a block of code: `with bus.breaker("bank"):` or `async with …` raises BreakerOpen
        while the target does not answer, and counts how the block ends."""
        rule = CircuitBreaker(target) if isinstance(target, str) else target
        return Guard(self.breakers, rule)

    @property
    @abstractmethod
    def session(self) -> Any:
        """What runs the ops of this bus."""

    @property
    def url(self) -> str:
        return self.engine.url


class PgmqClientBase:
    """A client of the PGMQ in a PostgreSQL database, not open yet. `url` is the argument, else
    COMMANDBUS_URL; the tables of the bus are not needed."""

    def __init__(self, url: str | None = None) -> None:
        self._engine = create_pgmq_engine(resolve_url(url))
