"""The signature of a task, as the fields of a payload."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from commandbus.integrations.celery.places import refused
from commandbus.worker.signatures import described, is_async


def signature_of(function: Callable[..., Any], bind: bool, place: str) -> inspect.Signature:
    """The parameters of a task as the payload has them; those without annotation take any JSON."""
    if is_async(function):
        raise refused(
            f"the `async def` task {described(function)}",
            "Make it a command: @registry.command, sent with bus.send.",
            place,
        )
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if bind else 0 :]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise refused(
                f"{str(parameter).split(':')[0]} of task {described(function)}",
                "The fields of a payload have names: name the parameters, or take one dict or list.",
                place,
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise refused(
                f"the positional-only parameter {parameter.name!r} of task {described(function)}",
                "The fields of a payload have names: remove the `/`.",
                place,
            )
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise refused(
            f"an annotation of task {described(function)}",
            f"It cannot be resolved ({error}): import its types at the top of the module.",
            place,
        ) from None
    result = hints.get("return", Any)
    return inspect.Signature(
        [one.replace(annotation=hints.get(one.name, Any)) for one in parameters],
        # A task may end without a result: by Ignore, or with ignore_result.
        return_annotation=Any if result is Any else result | None,
    )
