"""Settings of a worker as text: `NAME=VALUE`, as `commandbus worker --set` takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args, get_origin, get_type_hints

from commandbus.errors import ConfigurationError
from commandbus.interfaces.cli import options
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.settings import WorkerSettings, settings_of


def parse(assignments: Iterable[str]) -> WorkerSettings:
    """The settings of a worker; of two values for a name the later one counts."""
    given = dict(_parse_one(assignment) for assignment in assignments)
    try:
        return settings_of(WorkerSettings, None, given)
    except ConfigurationError as error:
        raise CliError(str(error), Exit.USAGE) from None


def _parse_one(assignment: str) -> tuple[str, Any]:
    name, equals, value = (part.strip() for part in assignment.partition("="))
    if not equals:
        raise CliError(f"--set needs NAME=VALUE, not {assignment!r}.", Exit.USAGE)
    kind = get_type_hints(WorkerSettings).get(name)
    kinds = get_args(kind) or (kind,)
    if float in kinds:
        return name, options.seconds(value, name)
    if int in kinds:
        try:
            return name, int(value)
        except ValueError:
            raise CliError(f"{name} must be a whole number, not {value!r}.", Exit.USAGE) from None
    if get_origin(kind) is tuple:
        return name, tuple(part.strip() for part in value.split(",") if part.strip())
    if kind is not None and str not in kinds:
        raise CliError(f"{name} cannot be set here; the app's handlers have it.", Exit.USAGE)
    return name, value
