"""Signatures of handlers: whether a function can be one, and how its payload is decoded."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from commandbus.domain.codec import Codec
from commandbus.domain.command import Command
from commandbus.errors import ConfigurationError
from commandbus.worker.context import HandlerContext, SyncHandlerContext

Decode = Callable[[str], Any]
_CONTEXTS = (HandlerContext, SyncHandlerContext)
T = TypeVar("T")


class _Provided:
    def __repr__(self) -> str:
        return "provided"


_PROVIDED = _Provided()
Provided = Annotated[T, _PROVIDED]
"""`Provided[AsyncClient]` as the annotation of a handler's parameter: not a part of the payload, but
the AsyncClient that the worker provides, by a lifespan or a middleware."""
PROVIDED: Any = _PROVIDED
"""The default of a parameter of a typed command that is provided: `client: Provided[AsyncClient] =
PROVIDED`. It tells type checkers that calls leave the parameter out."""


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - objects with an async __call__
    )


def payload_type_of(function: Callable[..., Any]) -> Any:
    """T, when the first parameter is annotated `Command[T]`; else Any. Raises ConfigurationError for
    what cannot be a handler."""
    if not callable(function):
        raise ConfigurationError(f"A handler must be callable, not {function!r}.")
    _check_kind(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables of C extensions have no signature
        return Any
    positional = _positional(function, signature)
    first = _annotation(function, positional[0]) if positional else Any
    try:
        second = _annotation(function, positional[1]) if positional[1:] else Any
    except ConfigurationError:  # nothing depends on the annotation of the context
        second = Any
    if not _accepts(first, (Command,)):
        shown = getattr(first, "__name__", str(first))
        raise ConfigurationError(
            f"{described(function)} must accept (command, context), but annotates its first parameter "
            f"as {shown}: annotate it Command[{shown}] if that is the payload, and read command.data."
        )
    if not _accepts(second, _CONTEXTS):
        raise ConfigurationError(
            f"{described(function)} must accept (command, context), but annotates its second parameter "
            f"as {getattr(second, '__name__', second)}: it gets a HandlerContext if it is `async def`, "
            "else a SyncHandlerContext."
        )
    if typing.get_origin(first) is Command:
        (inner,) = typing.get_args(first)
        return Any if isinstance(inner, TypeVar) else inner
    return Any


def _check_kind(function: Callable[..., Any]) -> None:
    """Things that can be called, but of which the call does not run the handler."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    for one in (function, called):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigurationError(
                f"{described(function)} is a generator: calling it runs nothing. Return the result "
                "instead of yielding; middleware may yield, see HandlerRegistry.middleware."
            )
    if inspect.isclass(function):
        raise ConfigurationError(
            f"{described(function)} is a class: register a function, an instance that can be called, "
            "or methods marked with @handler by register_instance."
        )


def is_provided(annotation: Any) -> bool:
    """Whether an annotation is `Provided[…]`."""
    return typing.get_origin(annotation) is Annotated and _PROVIDED in typing.get_args(annotation)[1:]


def provided_parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters that are annotated `Provided[…]`, and what each of them asks for."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables of C extensions have no signature
        return {}
    found: dict[str, Any] = {}
    for parameter in parameters:
        annotation = parameter.annotation
        if isinstance(annotation, str):
            try:
                annotation = _resolve(function, annotation)
            except ConfigurationError:
                if "Provided" in annotation:
                    raise
        if is_provided(annotation):
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise ConfigurationError(
                    f"{described(function)} takes {parameter.name} by position only; a provided "
                    "value is passed by name, so write the parameter after the `/`."
                )
            found[parameter.name] = typing.get_args(annotation)[0]
    return found


def _positional(function: Callable[..., Any], signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters that get command and context."""
    provided = provided_parameters(function)
    parameters = [p for p in signature.parameters.values() if p.name not in provided]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    required = [p for p in positional if p.default is p.empty]
    named = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    if (len(positional) < 2 and not variadic) or len(required) > 2 or named:
        raise ConfigurationError(
            f"{described(function)} must accept exactly (command, context), not {signature}."
        )
    return positional


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """What a parameter is annotated with; Any when that says nothing."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        annotation = _resolve(function, annotation)
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    return Any if annotation is parameter.empty else annotation


def _accepts(annotation: Any, kinds: tuple[type, ...]) -> bool:
    """Whether something of one of these classes may be passed; what is not sure counts as a yes."""
    origin = typing.get_origin(annotation) or annotation
    if origin in (typing.Union, types.UnionType):
        return any(_accepts(one, kinds) for one in typing.get_args(annotation))
    if origin is Any or not isinstance(origin, type) or getattr(origin, "_is_protocol", False):
        return True
    try:
        return any(issubclass(kind, origin) or issubclass(origin, kind) for kind in kinds)
    except TypeError:  # a class whose metaclass does not answer
        return True


def _routine(function: Callable[..., Any]) -> Any:
    """The function that is called in the end: inside partials, decorators, methods and objects."""
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if not inspect.isroutine(inner):  # an object with __call__, whose annotations are that method's
        inner = inspect.unwrap(type(inner).__call__)
    return getattr(inner, "__func__", inner)


def _resolve(function: Callable[..., Any], annotation: str) -> Any:
    """An annotation that is text, because of `from __future__ import annotations`."""
    inner = _routine(function)
    names = dict(getattr(inner, "__globals__", {}))
    code, cells = getattr(inner, "__code__", None), getattr(inner, "__closure__", None)
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=True):
        with suppress(ValueError):  # a variable that is assigned later
            names[name] = cell.cell_contents
    try:
        return eval(annotation, names)  # noqa: S307 - the programmer's own annotation, as typing does
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        if "[" not in annotation:  # a plain name promises nothing about the payload
            return Any
        raise ConfigurationError(
            f"The annotation {annotation!r} of {described(function)} cannot be resolved ({error}); "
            "define or import its types at the top of the module."
        ) from None


def payload_codec(function: Callable[..., Any], payload_type: Any) -> Codec[Any]:
    try:
        return Codec(payload_type)
    except TypeError as error:
        raise ConfigurationError(
            f"{described(function)} wants its payload as {payload_type!r}, which cannot be decoded "
            f"from JSON: {error}."
        ) from None


def described(function: Callable[..., Any]) -> str:
    """A handler in an error: its name, and where it is written if that is known."""
    routine = _routine(function)
    name = getattr(function, "__qualname__", getattr(routine, "__qualname__", repr(function)))
    code = getattr(routine, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
