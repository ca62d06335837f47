"""Finding an app: from `module:registry` to a HandlerRegistry, with errors that say where it looked."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import commandbus
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.worker.handlers import HandlerRegistry


def load_registry(app: str) -> HandlerRegistry:
    """The registry that `module:attribute` names; with `module` alone, the only one in it.

    The attribute may be dotted, and may be a function without arguments that returns a registry.
    Raises CliError with exit code 3.
    """
    module_name, _, attribute = app.partition(":")
    module = import_app(module_name)
    found = find_attribute(module, attribute) if attribute else _only_registry(module)
    if not isinstance(found, HandlerRegistry) and callable(found):
        found = _made_by(found, app)
    if not isinstance(found, HandlerRegistry):
        raise _error(f"{app!r} is {type(found).__name__}, not a HandlerRegistry.")
    if not found.registered_handlers() and not found.processes:
        raise _error(f"{app!r} has no handlers; import the modules that register them there.")
    return found


def import_app(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and (name == missing.name or name.startswith(missing.name + ".")):
            raise _error(
                f"There is no module {missing.name!r}; looked in {here} and on Python's path."
            ) from missing
        raise _broken(name, missing) from missing
    except (Exception, SystemExit) as error:  # the app's own code, which may raise anything
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> CliError:
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(commandbus.__file__).parent)
    places = [
        (frame.filename, frame.lineno)
        for frame in frames
        if "importlib" not in frame.filename and not frame.filename.startswith(ours)
    ]
    message = str(error)
    if isinstance(error, SyntaxError):  # nothing ran yet: it says itself where
        places, message = [(error.filename or name, error.lineno)], error.msg
    where = f" at {places[-1][0]}:{places[-1][1]}" if places else ""
    return _error(f"Importing {name!r} failed{where}: {type(error).__name__}: {message}")


def find_attribute(module: ModuleType, dotted: str) -> Any:
    found: Any = module
    for part in dotted.removesuffix("()").split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            near = difflib.get_close_matches(part, dir(found), n=1)
            known = near or _registries(module)
            hint = f"; did you mean {known[0]!r}?" if known else "."
            raise _error(f"{module.__name__!r} has no attribute {dotted!r}{hint}") from None
    return found


def _registries(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, HandlerRegistry)]


def _only_registry(module: ModuleType) -> HandlerRegistry:
    names = _registries(module)
    different = list({id(getattr(module, name)): name for name in names}.values())
    if "registry" in names or len(different) == 1:
        return getattr(module, "registry" if "registry" in names else names[0])  # type: ignore[no-any-return]
    if not names:
        raise _error(
            f"{module.__name__!r} holds no HandlerRegistry; name it as {module.__name__}:attribute."
        )
    listed = ", ".join(different)
    raise _error(
        f"{module.__name__!r} holds several registries ({listed}); name one, as in "
        f"{module.__name__}:{different[0]}, or serve all of them: write "
        f"`registry = HandlerRegistry.union([{listed}])` in that module."
    )


def _made_by(factory: Any, app: str) -> Any:
    try:
        return factory()
    except Exception as error:  # the app's own code, which may raise anything
        raise _error(f"Calling {app!r} failed: {type(error).__name__}: {error}") from error


def _error(message: str) -> CliError:
    return CliError(message, Exit.NO_APP)
