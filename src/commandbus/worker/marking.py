"""`@handler` on methods: what an object handles, until the object itself is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from commandbus.domain.shown import shows_options
from commandbus.worker.options import HandlerOptions, check_options

Function = TypeVar("Function", bound=Callable[..., Any])

MARK = "__commandbus_handler__"


@dataclass(frozen=True, slots=True)
class Mark:
    """What `@handler` leaves on a method until its object is registered."""

    domain: str
    command_type: str
    options: HandlerOptions


@shows_options()
def handler(
    domain: str, command_type: str, **options: Unpack[HandlerOptions]
) -> Callable[[Function], Function]:
    """Mark a method as the handler of a command type; `registry.register_instance(obj)` then
    registers all marked methods of an object. The options are those of `HandlerRegistry.handler`."""

    def mark(function: Function) -> Function:
        check_options(function, options)
        setattr(function, MARK, Mark(domain, command_type, options))
        return function

    return mark
