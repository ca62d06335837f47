"""Signatures as `help()` shows them: each keyword of a TypedDict by itself, functions by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ForwardRef, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
NOTHING: Mapping[str, Any] = MappingProxyType({})

_UNPACKED = re.compile(r"Unpack\[(\w+)\]$")


class Named:
    """A default that is shown by a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def shows_options(defaults: Mapping[str, Any] = NOTHING) -> Callable[[F], F]:
    """Show the keywords of a function that it takes as `**options: Unpack[…]`, with these defaults."""

    def show(function: F) -> F:
        signature = inspect.signature(function)
        shown = list(expanded(function, list(signature.parameters.values()), defaults))
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return show


def expanded(
    function: Callable[..., Any], parameters: list[inspect.Parameter], defaults: Mapping[str, Any]
) -> Iterator[inspect.Parameter]:
    """The parameters with each keyword of a TypedDict in place of `**options`."""
    for parameter in parameters:
        keywords = _UNPACKED.match(str(parameter.annotation))
        if keywords is not None:
            for name, kind in function.__globals__[keywords[1]].__annotations__.items():
                text = _text(kind)
                default = _named(defaults.get(name, False if text == "bool" else None))
                only = inspect.Parameter.KEYWORD_ONLY
                yield inspect.Parameter(name, only, default=default, annotation=text)
        else:
            yield parameter.replace(default=_named(parameter.default))


def _named(default: Any) -> Any:
    """Functions have an address in their text; their name is what matters."""
    return Named(default.__name__) if inspect.isfunction(default) else default


def _text(annotation: Any) -> str:
    """An annotation as it was written."""
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else str(annotation)
