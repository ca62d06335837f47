"""Commands for trying out a store, whose files are in the distribution durable-commandbus-lab."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from commandbus.interfaces.cli.exits import CliError, Exit


def lab_module(name: str, wanted_by: str) -> Any:
    """A module of that distribution. Raises CliError, naming the cure, where it is not installed."""
    full_name = f"commandbus.interfaces.cli.{name}"
    try:
        return import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name != full_name:
            raise
        raise CliError(
            f"`commandbus {wanted_by}` is part of another distribution; install it with: "
            "pip install durable-commandbus-lab",
            Exit.USAGE,
        ) from error
