"""Handlers: who carries out which command, and how its payload is decoded."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

from commandbus.domain.breaker import CircuitBreaker
from commandbus.domain.misfit import describe_misfit
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.names import as_name
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import (
    ConfigurationError,
    HandlerAlreadyRegisteredError,
    HandlerNotFoundError,
    PayloadError,
)
from commandbus.worker.mapping import (
    ErrorMap,
    ErrorRule,
    check_error_class,
    check_error_rule,
    check_errors,
    translate,
)
from commandbus.worker.middleware import Middleware, check_middleware
from commandbus.worker.signatures import Decode, decoder, described, is_async, payload_type_of

Function = TypeVar("Function", bound=Callable[..., Any])
Layer = TypeVar("Layer", bound=Middleware)

_MARK = "__commandbus_handler__"


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler and everything a worker must know to call it."""

    domain: str
    command_type: str
    function: Callable[..., Any]
    is_async: bool
    decode: Decode
    payload_type: Any
    retry: RetryPolicy | None = None
    timeout: float | None = None
    breaker: CircuitBreaker | None = None
    transactional: bool = False
    total_timeout: float | None = None
    errors: ErrorMap | None = None

    @property
    def payload_name(self) -> str:
        """What it takes, for messages."""
        kind = self.payload_type
        return "any JSON" if kind is Any else getattr(kind, "__name__", str(kind))


class HandlerOptions(TypedDict, total=False):
    """What may be said about a handler; see `HandlerRegistry.handler`."""

    retry: RetryPolicy | None
    timeout: Duration | None
    total_timeout: Duration | None
    breaker: CircuitBreaker | str | None
    transactional: bool
    errors: ErrorMap | None


@dataclass(frozen=True, slots=True)
class _Mark:
    """What `@handler` leaves on a method until its object is registered."""

    domain: str
    command_type: str
    options: HandlerOptions


def handler(
    domain: str, command_type: str, **options: Unpack[HandlerOptions]
) -> Callable[[Function], Function]:
    """Mark a method as the handler of a command type; `registry.register_instance(obj)` then
    registers all marked methods of an object. The options are those of `HandlerRegistry.handler`."""

    def mark(function: Function) -> Function:
        _check_options(function, options)
        setattr(function, _MARK, _Mark(domain, command_type, options))
        return function

    return mark


class HandlerRegistry:
    """Handlers by (domain, command type). One type has one handler.

    A handler is called with (command, context); it may be `def` or `async def` in both runtimes, and
    what it returns is the result of the command.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._errors: dict[type[BaseException], ErrorRule] = {}
        self.layers: tuple[Middleware, ...] = ()
        """Middleware around all handlers, the first one outermost."""

    def handler(
        self, domain: str, command_type: str, **options: Unpack[HandlerOptions]
    ) -> Callable[[Function], Function]:
        """Register the decorated function.

        `retry` overrides the worker's policy. `timeout` bounds each run in seconds, `total_timeout`
        all of them together, from when the command was due. With `breaker` (a target's name, or a
        CircuitBreaker for other numbers) commands are put off, without using an attempt, while that
        target does not answer. `transactional` gives the handler a transaction in which its effects,
        its follow-ups and its outcome commit together. `errors` says what exceptions mean; see
        `map_exception`.
        """

        def decorate(function: Function) -> Function:
            self.register(domain, command_type, function, **options)
            return function

        return decorate

    def middleware(self, function: Layer) -> Layer:
        """Put a generator with one yield around every handler; the first one is outermost. Raises
        ConfigurationError for anything else."""
        self.layers = (*self.layers, check_middleware(function))
        return function

    def map_exception(self, kind: type[BaseException], means: ErrorRule) -> None:
        """Say what an exception means, for all handlers: TransientCommandError,
        PermanentCommandError or BusinessRuleException, or a function from the exception to what is
        to be judged instead. The nearest class counts, and a handler's own `errors` come first."""
        self._errors[check_error_class(kind)] = check_error_rule(means)

    def translate(self, error: BaseException, handler: Handler | None) -> BaseException:
        """The exception that is to be judged."""
        if handler is not None and handler.errors:
            translated = translate(error, handler.errors)
            if translated is not error:
                return translated
        return translate(error, self._errors) if self._errors else error

    def check_payload(self, domain: str, command_type: str, data: str) -> None:
        """Raise PayloadError when a payload (JSON text) does not fit its handler, if there is one."""
        found = self.get(domain, command_type)
        if found is None:
            return
        try:
            found.decode(data)
        except Exception as error:  # a payload type may raise anything in its validation
            raise PayloadError(
                f"The payload does not fit {found.payload_name} of the handler for {command_type!r} "
                f"in domain {domain!r}: {describe_misfit(error)}"
            ) from None  # the cause may quote the payload, and tracebacks are kept

    def register(
        self,
        domain: str,
        command_type: str,
        function: Callable[..., Any],
        **options: Unpack[HandlerOptions],
    ) -> Handler:
        """Register a function or bound method.

        Raises HandlerAlreadyRegisteredError for a second one of the same type, and
        ConfigurationError when it cannot be called with (command, context), its payload type cannot be
        decoded from JSON, or an option is wrong or unknown.
        """
        key = (as_name(domain, "domain"), as_name(command_type, "command_type"))
        if key in self._handlers:
            raise HandlerAlreadyRegisteredError(*key)
        payload_type = payload_type_of(function)
        _check_options(function, options)
        breaker = options.get("breaker")
        registered = Handler(
            domain,
            command_type,
            function,
            is_async=is_async(function),
            decode=decoder(function, payload_type),
            payload_type=payload_type,
            retry=options.get("retry"),
            timeout=_seconds(options.get("timeout"), "timeout"),
            breaker=CircuitBreaker(breaker) if isinstance(breaker, str) else breaker,
            transactional=options.get("transactional", False),
            total_timeout=_seconds(options.get("total_timeout"), "total_timeout"),
            errors=check_errors(options.get("errors")),
        )
        self._handlers[key] = registered
        return registered

    def register_instance(self, instance: object) -> list[tuple[str, str]]:
        """Register every method of an object that is marked with `@handler`; returns what was
        registered. Raises ConfigurationError when there is none."""
        found: list[tuple[str, str]] = []
        for name in dir(type(instance)):
            mark = getattr(getattr(type(instance), name, None), _MARK, None)
            if isinstance(mark, _Mark):
                method = getattr(instance, name)
                self.register(mark.domain, mark.command_type, method, **mark.options)
                found.append((mark.domain, mark.command_type))
        if not found:
            raise ConfigurationError(
                f"{type(instance).__name__} has no method marked with @handler(domain, command_type)."
            )
        return found

    def get(self, domain: str, command_type: str) -> Handler | None:
        return self._handlers.get((domain, command_type))

    def get_or_raise(self, domain: str, command_type: str) -> Handler:
        found = self.get(domain, command_type)
        if found is None:
            raise HandlerNotFoundError(domain, command_type)
        return found

    def has_handler(self, domain: str, command_type: str) -> bool:
        return (domain, command_type) in self._handlers

    def registered_handlers(self) -> list[tuple[str, str]]:
        return list(self._handlers)

    def __iter__(self) -> Iterator[Handler]:
        return iter(list(self._handlers.values()))

    def clear(self) -> None:
        self._handlers.clear()


def _seconds(duration: Duration | None, name: str) -> float | None:
    return None if duration is None else as_seconds(duration, name, minimum=0.001)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "retry": (RetryPolicy, type(None)),
    "breaker": (CircuitBreaker, str, type(None)),
    "transactional": (bool,),
}
"""Options whose type is checked here; the others are checked where they are read."""


def _check_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    known = sorted(HandlerOptions.__annotations__)
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigurationError(
                f"The handler {described(function)} is registered with {name}=, which is no option: "
                f"{meant}The options are {', '.join(known)}."
            )
        if not isinstance(value, _KINDS.get(name, object)):
            names = " or ".join("None" if k is type(None) else k.__name__ for k in _KINDS[name])
            raise ConfigurationError(
                f"{name} of the handler {described(function)} must be a {names}, not {value!r}."
            )
