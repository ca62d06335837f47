"""The options of a handler's registration, and their checks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from commandbus.domain.breaker import CircuitBreaker
from commandbus.domain.defaults import DefaultOptions, Defaults
from commandbus.domain.limits import Limit, make_limit, parse_rate
from commandbus.domain.moment import Duration, as_seconds
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import ConfigurationError, InvalidArgumentError
from commandbus.worker.exception_rules import ErrorMap
from commandbus.worker.signatures import described


class HandlerOptions(DefaultOptions, total=False):
    """What may be said about a handler; see `HandlerRegistry.handler`."""

    retry: RetryPolicy | None
    timeout: Duration | None
    total_timeout: Duration | None
    breaker: CircuitBreaker | str | None
    transactional: bool
    errors: ErrorMap | None
    rate: str | None
    concurrency: int | None
    isolation: Literal["process"] | None
    memory: str | int | None
    soft_timeout: Duration | None


def defaults_of(function: Callable[..., Any], options: HandlerOptions) -> Defaults | None:
    """The defaults of all requests of the command."""
    try:
        return Defaults.of(options)
    except InvalidArgumentError as error:
        raise ConfigurationError(f"The handler {described(function)}: {error}") from None


def limit_of(
    function: Callable[..., Any], key: tuple[str, str], options: HandlerOptions
) -> Limit | None:
    """The limit of the fleet for the command's type."""
    if options.get("rate") is None and options.get("concurrency") is None:
        return None
    rate, seconds = options.get("rate"), 1.0
    count: float | None = None
    try:
        if rate is not None:
            count, seconds = parse_rate(rate)
        return make_limit(*key, False, options.get("concurrency"), count, seconds, None, False)
    except InvalidArgumentError as error:
        raise ConfigurationError(f"The handler {described(function)}: {error}") from None


def seconds_of(duration: Duration | None, name: str) -> float | None:
    return None if duration is None else as_seconds(duration, name, minimum=0.001)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "retry": (RetryPolicy, type(None)),
    "breaker": (CircuitBreaker, str, type(None)),
    "transactional": (bool,),
}
"""Options whose type is checked here; the others are checked where they are read."""


def check_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for an option that is unknown or of a wrong type."""
    known = sorted({**DefaultOptions.__annotations__, **HandlerOptions.__annotations__})
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


def two_of_one_name(what: str, name: str, field: str) -> ConfigurationError:
    return ConfigurationError(f"Two {what} are called {name!r}; give one of them another {field}.")
