"""Values provided to handlers: a parameter annotated `Provided[T]` gets the T that the worker has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any


def inject(function: Callable[..., Any], wanted: Mapping[str, Any]) -> Callable[..., Any]:
    """A handler of (command, context) that passes on the values which its function asks for, by the
    names of its parameters. Of an `async def` function it returns the coroutine."""
    if not wanted:
        return function

    @wraps(function)
    def run(command: Any, context: Any) -> Any:
        values = {name: context.provided(kind) for name, kind in wanted.items()}
        return function(command, context, **values)

    return run
