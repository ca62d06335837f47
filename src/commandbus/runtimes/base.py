"""What the buses of both runtimes are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from commandbus.connect import create_engine, create_pgmq_engine
from commandbus.domain.breaker import CircuitBreaker
from commandbus.domain.gates import Gates
from commandbus.domain.guard import Guard
from commandbus.domain.moment import Clock, system_clock
from commandbus.errors import ConfigurationError
from commandbus.operations.breakers import TOPIC as BREAKERS
from commandbus.operations.scope import Scope
from commandbus.settings import BusSettings, resolve_url
from commandbus.store.session import Engine
from commandbus.store.wakeup import WakeHub
from commandbus.worker.handlers import HandlerRegistry

S_co = TypeVar("S_co", covariant=True)


class Host(Protocol[S_co]):
    """What operations as methods hang on: a bus, or something over one, with its kind of session."""

    @property
    def scope(self) -> Scope: ...
    @property
    def session(self) -> S_co: ...
    @property
    def hub(self) -> WakeHub: ...


TRIES_MAX = 4


def may_repeat(tries: int, arguments: Iterable[object]) -> bool:
    """Whether an operation that was undone so many times is built and run again. Not with an iterator
    among its arguments, which has been used up."""
    return tries < TRIES_MAX and not any(isinstance(value, Iterator) for value in arguments)


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


class BusBase:
    """A bus that is not open yet.

    `url` is the argument, else COMMANDBUS_URL, else sqlite:///commandbus.db in the current folder.
    With `migrate`, a store that does not create its schema at open is brought to this version then.
    Settings are those of BusSettings.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        migrate: bool = False,
        transport: str | None = None,
        clock: Clock = system_clock,
        **settings: Any,
    ) -> None:
        self.engine: Engine = create_engine(
            resolve_url(url), migrate=migrate, transport=transport, clock=clock
        )
        self.settings = BusSettings(**settings)
        self.scope = Scope(self.engine.store, self.settings)
        if self.settings.tracing is not None:
            self.scope.carry = tracing_module().carry
        self.hub = self.engine.hub
        self.gates = Gates(partial(self.hub.wake, BREAKERS, None, "breaker"))

    def breaker(self, target: str | CircuitBreaker) -> Guard:
        """Guard a block of code: `with bus.breaker("bank"):` or `async with …` raises BreakerOpen
        while the target does not answer, and counts how the block ends."""
        rule = CircuitBreaker(target) if isinstance(target, str) else target
        return Guard(self.gates, rule)

    @property
    def url(self) -> str:
        return self.engine.url


class PgmqClientBase:
    """A client of the PGMQ in a PostgreSQL database, not open yet. `url` is the argument, else
    COMMANDBUS_URL; the tables of the bus are not needed."""

    def __init__(self, url: str | None = None) -> None:
        self._engine = create_pgmq_engine(resolve_url(url))
