"""Rules that translate exceptions of libraries into those that the bus classifies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from commandbus.errors import (
    CommandBusError,
    CommandCanceled,
    ConfigurationError,
    HandlerError,
    LeaseLost,
    Snooze,
)

ErrorRule = type[HandlerError] | Callable[[Any], BaseException]
"""A kind of failure, or a function from the exception to what is to be judged instead."""
ErrorMap = Mapping[type[BaseException], ErrorRule]
VERDICTS = (HandlerError, Snooze, CommandCanceled, LeaseLost)
"""Exceptions of the bus that already say what follows. A rule for Exception does not change them."""


def check_errors(errors: ErrorMap | None) -> ErrorMap | None:
    if errors is None:
        return None
    if not isinstance(errors, Mapping):
        raise ConfigurationError(f"errors must be a dict from exception to meaning, not {errors!r}.")
    return {check_error_class(kind): check_error_rule(means) for kind, means in errors.items()}


def check_error_class(kind: Any) -> type[BaseException]:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise ConfigurationError(f"Only exception classes can be mapped, not {kind!r}.")
    return kind


def check_error_rule(means: Any) -> ErrorRule:
    if isinstance(means, type) and not issubclass(means, HandlerError):
        raise ConfigurationError(
            f"{means.__name__} says nothing about retries; map to TransientCommandError, "
            "PermanentCommandError, BusinessRuleException, or to a function."
        )
    if not callable(means):
        raise ConfigurationError(f"{means!r} is neither a kind of failure nor a function.")
    return cast("ErrorRule", means)


def translate(error: BaseException, rules: ErrorMap) -> BaseException:
    """The exception that is to be judged: by the rule of the nearest class, with the traceback of
    the original and its own name as the code. Only rules for classes of the bus change a verdict."""
    kinds = (kind for kind in type(error).__mro__ if kind in rules)
    if isinstance(error, VERDICTS):
        kinds = (kind for kind in kinds if issubclass(kind, CommandBusError))
    rule = next((rules[kind] for kind in kinds), None)
    if rule is None:
        return error
    if isinstance(rule, type):
        meant: BaseException = rule(type(error).__name__, str(error))
    else:
        meant = rule(error)
    if meant is not error:
        meant.__cause__ = error
        meant.__traceback__ = error.__traceback__
    return meant
