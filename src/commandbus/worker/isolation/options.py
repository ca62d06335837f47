"""Which handlers may run in a child process, and what is declared about them.

A child is a new interpreter, so it must be able to import the handler by the name of its module and its
qualified name. What it could not import is refused where it is registered.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from commandbus.domain.moment import as_seconds
from commandbus.errors import ConfigurationError, InvalidArgumentError
from commandbus.worker.signatures import described

logger = logging.getLogger("commandbus.worker")

MAIN_ALIAS = "__commandbus_main__"
"""The name under which a child runs the main script of the worker: what is below
`if __name__ == "__main__":` does not run again."""
MEMORY_MIN = 32 * 1024**2
"""An interpreter with the bus takes about this much before any handler runs."""
_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMG])i?B", re.IGNORECASE)
_NEEDS_PROCESS = ("memory", "soft_timeout")


class Isolated(msgspec.Struct, frozen=True):
    """A handler that runs in a child process: where the child finds it, and what it may use."""

    module: str
    name: str
    soft_timeout: float | None = None
    memory: int | None = None
    """Bytes."""


def isolated_of(
    function: Callable[..., Any], options: Mapping[str, Any], provided: Mapping[str, Any]
) -> Isolated | None:
    """What a handler's options say about a process of its own; None without one. Raises
    ConfigurationError, with the file and line of the handler, for what cannot run in one."""
    isolation = options.get("isolation")
    if isolation is None:
        for name in _NEEDS_PROCESS:
            if options.get(name) is not None:
                raise _refused(function, f'has {name}=, which needs isolation="process"')
        return None
    if isolation != "process":
        raise _refused(function, f'has isolation={isolation!r}; the only kind is "process"')
    if options.get("transactional"):
        raise _refused(
            function,
            'cannot have both isolation="process" and transactional=True: the transaction is on a '
            "connection of the worker. Leave one of them out",
        )
    if provided:
        raise _refused(
            function,
            f"asks for the provided value {next(iter(provided))!r}, which stays in the worker process: "
            "create it in the child instead, in a function of the module under functools.cache",
        )
    _check_importable(function)
    return Isolated(
        function.__module__,
        function.__qualname__,
        _soft_timeout(function, options),
        _memory(function, options.get("memory")),
    )


def _refused(function: Any, problem: str) -> ConfigurationError:
    return ConfigurationError(f"The handler {described(function)} {problem}.")


def _check_importable(function: Any) -> None:
    cure = "Write a function at the top level of a module"
    if not inspect.isfunction(function):
        raise _refused(
            function,
            f"cannot run in a child process: a {type(function).__name__} cannot be imported by its "
            f"name. {cure}",
        )
    for part, what in (("<lambda>", "a lambda"), ("<locals>", "defined inside a function")):
        if part in function.__qualname__:
            raise _refused(
                function, f"cannot be imported by a child process, because it is {what}. {cure}"
            )
    if function.__module__ == "__main__" and main_source() is None:
        raise _refused(
            function,
            "is defined in an interactive session, which a child process cannot import. "
            "Move it to a file",
        )


def main_source() -> tuple[str, str] | None:
    """How a child runs the main module of this program: ("module", its name) or ("path", its file);
    None for an interactive session."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return "module", spec.name
    path = getattr(main, "__file__", None)
    return None if path is None or path.startswith("<") else ("path", path)


def _soft_timeout(function: Any, options: Mapping[str, Any]) -> float | None:
    soft, hard = options.get("soft_timeout"), options.get("timeout")
    if soft is None:
        return None
    try:
        seconds = as_seconds(soft, "soft_timeout", minimum=0.001)
        if hard is not None and seconds >= as_seconds(hard, "timeout"):
            raise InvalidArgumentError(f"soft_timeout={soft} must be less than timeout={hard}.")
    except InvalidArgumentError as error:
        raise ConfigurationError(f"The handler {described(function)}: {error}") from None
    return seconds


def _memory(function: Any, wanted: Any) -> int | None:
    if wanted is None:
        return None
    size = _bytes_of(wanted)
    if size is None or size < MEMORY_MIN:
        raise _refused(
            function,
            f"has memory={wanted!r}: write a number of bytes or a text such as '256MB' or '1.5GB', at "
            f"least {MEMORY_MIN // 1024**2}MB, which the interpreter itself needs",
        )
    return size


def _bytes_of(wanted: Any) -> int | None:
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return wanted
    found = _SIZE.fullmatch(wanted) if isinstance(wanted, str) else None
    return None if found is None else int(float(found[1]) * _UNITS[found[2].upper()])


def find_function(module: Any, name: str) -> Any:
    """What a module holds under a qualified name. Raises AttributeError."""
    found = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def check_runnable(isolated: Isolated, function: Callable[..., Any]) -> None:
    """Raises ConfigurationError when a worker on this system cannot run a handler in a child, or when
    its name leads elsewhere, which is not known before its module is imported as a whole."""
    if sys.platform == "win32":
        raise _refused(
            function,
            'has isolation="process", which needs signals and sockets of POSIX systems: run this '
            "worker on Linux or macOS, or in WSL. Sending works everywhere",
        )
    if isolated.memory is not None and sys.platform == "darwin":
        logger.warning("macOS enforces no memory limit: memory= of %s is not kept", described(function))
    try:
        module = sys.modules.get(isolated.module) or importlib.import_module(isolated.module)
        found = find_function(module, isolated.name)
    except (ImportError, AttributeError) as error:
        raise _refused(function, f"cannot be found by a child process: {error}") from None
    if getattr(found, "function", found) is not function:
        raise _refused(
            function,
            f"cannot be found by a child process: {isolated.module}.{isolated.name} is {found!r} by "
            "now. Give it a name of its own, and write other decorators below that of the registry",
        )
