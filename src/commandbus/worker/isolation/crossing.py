"""Exceptions between a worker and its child processes, as values.

The other side gets an exception of the same class if it has that class, with the same text, and else of
the nearest base that it has, so that `errors=` and `map_exception` mean the same on both sides. Classes
are looked up among the modules that are imported already; nothing is imported or called for it.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import msgspec

from commandbus.domain.failure import Origin, classify, set_origin

_ROOTS = (BaseException, object)


class CrossedError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception as a value."""

    classes: list[tuple[str, str]]
    """(module, qualified name) of its class and of the bases of that, the nearest first."""
    text: str
    arguments: list[Any] = []
    state: dict[str, Any] = {}
    traceback: str | None = None
    frame: str | None = None
    place: str | None = None


def pack(error: BaseException) -> CrossedError:
    """Never raises, whatever the exception carries."""
    seen = classify(error)
    classes = [(c.__module__, c.__qualname__) for c in type(error).__mro__ if c not in _ROOTS]
    try:
        text = str(error)
    except Exception:  # a handler's exception class may be broken
        text = seen.message
    return CrossedError(
        classes,
        text.encode("utf-8", "backslashreplace").decode(),
        list(error.args) if _crosses(error.args) else [],
        {n: v for n, v in vars(error).items() if not n.startswith("__") and _crosses(v)},
        seen.traceback,
        seen.frame,
        seen.place,
    )


def unpack(crossed: CrossedError) -> BaseException:
    error = _instance(crossed)
    vars(error).update(crossed.state)
    set_origin(error, Origin(crossed.traceback, crossed.frame, crossed.place))
    return error


def _instance(crossed: CrossedError) -> BaseException:
    known = next(filter(None, (_class_of(*names) for names in crossed.classes)), Exception)
    module, name = crossed.classes[0] if crossed.classes else ("builtins", "Exception")
    if (known.__module__, known.__qualname__) == (module, name):
        error = _made(known, *crossed.arguments)
        if error is not None and _says(error, crossed.text):
            return error
    body = {"__module__": module, "__qualname__": name, "__str__": lambda self: crossed.text}
    for base in (known, Exception):
        try:
            alike = type(name.rpartition(".")[2], (base,), body)
        except TypeError:  # a class may forbid subclasses
            continue
        if (error := _made(alike, crossed.text)) is not None:
            return error
    return Exception(crossed.text)


def _made(kind: Any, *arguments: Any) -> BaseException | None:
    """An instance, without the constructor of the class; None when the class wants other arguments."""
    try:
        return cast("BaseException", kind.__new__(kind, *arguments))
    except (TypeError, ValueError):
        return None


def _says(error: BaseException, text: str) -> bool:
    try:
        return str(error) == text
    except Exception:  # its text may need what only its constructor sets
        return False


def _class_of(module: str, name: str) -> type[BaseException] | None:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _crosses(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except Exception:  # objects of any kind hang on exceptions
        return False
    return True
