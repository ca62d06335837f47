"""From a plain function to a typed command: its parameters are the payload, its return type the result.

A signature that cannot be a contract is refused where it is declared, with the file and line of the
function, so that no worker meets it later.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import wraps
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from commandbus.domain.codec import Codec
from commandbus.domain.command import Command
from commandbus.domain.contract import CommandType, is_model
from commandbus.errors import ConfigurationError, PayloadError
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.local import local_context
from commandbus.worker.signatures import PROVIDED, described, is_async, is_provided

P = ParamSpec("P")
R = TypeVar("R")

Call = Callable[[Command[Any], Any], Any]
"""A handler as a worker calls it."""


class FunctionCommandType(CommandType[P, R]):
    """A typed command and the function that carries it out."""

    function: Callable[..., Any]
    """The plain function, whose first parameter is the context if it takes one."""
    takes_context: bool
    provided: Mapping[str, Any]
    """The types of its parameters that a worker provides, by their names."""
    handler: Call

    def _call(self, context: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the plain function as a worker does; a provided value that is not given comes from the
        context."""
        if self.takes_context or self.provided:
            given = local_context(is_async(self.function)) if context is None else context
            missing = {name: kind for name, kind in self.provided.items() if name not in kwargs}
            kwargs |= {name: given.provided(kind) for name, kind in missing.items()}
            args = (given, *args) if self.takes_context else args
        return self.function(*args, **kwargs)


class AsyncCommandType(FunctionCommandType[P, R], Generic[P, R]):
    """A typed command that an `async def` function carries out."""

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the plain function, for unit tests: no bus, no worker. Where it takes a context it
        gets one for tests; see `commandbus.testing.handler_context`. Give provided values by name."""
        return self.run_with(None, *args, **kwargs)

    def run_with(
        self, context: HandlerContext | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """As `run`, with a context of your own."""
        called: Coroutine[Any, Any, R] = self._call(context, args, kwargs)
        return called


class SyncCommandType(FunctionCommandType[P, R], Generic[P, R]):
    """A typed command that a `def` function carries out."""

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function, for unit tests: no bus, no worker. Where it takes a context it
        gets one for tests; see `commandbus.testing.sync_handler_context`. Give provided values by
        name."""
        return self.run_with(None, *args, **kwargs)

    def run_with(self, context: SyncHandlerContext | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """As `run`, with a context of your own."""
        result: R = self._call(context, args, kwargs)
        return result


WithContext = Callable[Concatenate[HandlerContext, P], R]
WithSyncContext = Callable[Concatenate[SyncHandlerContext, P], R]


class CommandDecorator(Protocol):
    """`@registry.command(…)`: makes a typed command of the function below it. A coroutine function is a
    function, too, so its overload comes first."""

    @overload
    def __call__(self, function: WithContext[P, Awaitable[R]], /) -> AsyncCommandType[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: WithContext[P, R], /) -> SyncCommandType[P, R]: ...
    @overload
    def __call__(self, function: WithSyncContext[P, R], /) -> SyncCommandType[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> AsyncCommandType[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncCommandType[P, R]: ...


def command_of(
    function: Callable[..., Any], domain: str, name: str | None, names: Mapping[str, Any]
) -> FunctionCommandType[..., Any]:
    """The typed command of a function. `names` are those that its annotations may use beside those of
    its module. Raises ConfigurationError for a signature that cannot be a contract."""
    if not inspect.isfunction(function):
        raise _refused(function, "is not a function: decorate a `def` or an `async def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _refused(function, "is a generator: calling it runs nothing. Return the result instead")
    signature = _signature(function, names)
    parameters = list(signature.parameters.values())
    takes_context = bool(parameters) and _is_context(parameters[0].annotation)
    if takes_context:
        if is_async(function) and parameters[0].annotation is SyncHandlerContext:
            raise _refused(function, "is `async def`: its context is a HandlerContext")
        del parameters[0]
    provided: dict[str, Any] = {}
    for parameter in parameters:
        _check(function, parameter, provided)
        if is_provided(parameter.annotation):
            provided[parameter.name] = typing.get_args(parameter.annotation)[0]
    parameters = [parameter for parameter in parameters if parameter.name not in provided]
    called = signature.replace(parameters=parameters)
    result = _codec(function, signature.return_annotation, "its result")
    if len(parameters) == 1 and is_model(parameters[0].annotation):
        make, payload, arguments = _one_model(function, parameters[0])
    else:
        make, payload, arguments = _fields(function, called)
    kind = AsyncCommandType if is_async(function) else SyncCommandType
    command: FunctionCommandType[..., Any] = kind(
        domain, function.__name__ if name is None else name, make, payload, result
    )
    command.function, command.takes_context, command.provided = function, takes_context, provided
    command.handler = _handler(function, takes_context, provided, arguments)
    command.__doc__, command.__module__ = function.__doc__, function.__module__
    command.__signature__ = called
    return command


def _refused(function: Any, problem: str) -> ConfigurationError:
    return ConfigurationError(f"The command {described(function)} {problem}.")


def _signature(function: Callable[..., Any], names: Mapping[str, Any]) -> inspect.Signature:
    """The signature with its annotations as types."""
    try:
        signature = inspect.signature(function)
    except NameError as error:  # since Python 3.14 annotations are evaluated here
        raise _refused(function, f"has an annotation that cannot be resolved: {error}") from None
    found = {**names, **inspect.getclosurevars(function).nonlocals}

    def resolve(annotation: Any, what: str) -> Any:
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return typing.get_type_hints(holder, function.__globals__, found, include_extras=True)["it"]
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            raise _refused(
                function,
                f"annotates {what} as {annotation!r}, which cannot be resolved ({error}); define or "
                "import its types at the top of the module",
            ) from None

    parameters = [
        parameter
        if parameter.annotation is parameter.empty
        else parameter.replace(annotation=resolve(parameter.annotation, repr(parameter.name)))
        for parameter in signature.parameters.values()
    ]
    result: Any = signature.return_annotation
    result = Any if result is signature.empty else resolve(result, "its result")
    return signature.replace(parameters=parameters, return_annotation=result)


def _is_context(annotation: Any) -> bool:
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_context(one) for one in typing.get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, HandlerContext | SyncHandlerContext)


def _check(
    function: Callable[..., Any], parameter: inspect.Parameter, provided: Mapping[str, Any]
) -> None:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise _refused(
            function,
            f"takes {str(parameter).split(':')[0]}: the fields of a payload have names and types",
        )
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise _refused(function, f"takes {name!r} by position only: the fields of a payload have names")
    if name.startswith("__"):
        raise _refused(function, f"takes {name!r}: a field cannot begin with two underscores")
    if parameter.annotation is parameter.empty:
        raise _refused(function, f"does not annotate {name!r}: say its type, or Any for any JSON value")
    if is_provided(parameter.annotation):
        return
    if parameter.default is PROVIDED:
        raise _refused(function, f"gives {name!r} the default PROVIDED: annotate it Provided[…]")
    if provided and parameter.kind is not parameter.KEYWORD_ONLY:
        raise _refused(
            function,
            f"takes {name!r} after the provided value {next(iter(provided))!r}: write provided values "
            "last, so that the fields of a payload can be given by position",
        )
    if _is_context(parameter.annotation):
        raise _refused(function, f"takes its context as {name!r}: make it the first parameter")


def _codec(
    function: Callable[..., Any], kind: Any, what: str, *, made_of_arguments: bool = False
) -> Codec[Any]:
    if (unchecked := _unchecked(kind)) is not None:
        raise _refused(
            function,
            f"annotates {what} with {type(unchecked).__name__}, which nothing checks outside of a "
            "pydantic model: use msgspec.Meta, or a pydantic model",
        )
    try:
        return Codec(kind, made_of_arguments=made_of_arguments)
    except (TypeError, NameError) as error:
        raise _refused(
            function, f"annotates {what} as {kind!r}, which has no JSON form: {error}"
        ) from None


def _unchecked(kind: Any) -> Any:
    """A constraint of pydantic somewhere in a type, which msgspec ignores, or None."""
    for one in kind.__metadata__ if typing.get_origin(kind) is Annotated else ():
        if any(base.__module__.split(".")[0] in _OF_PYDANTIC for base in type(one).__mro__):
            return one
    inner = (_unchecked(part) for part in typing.get_args(kind) if typing.get_args(part))
    return next((found for found in inner if found is not None), None)


_OF_PYDANTIC = ("pydantic", "annotated_types")


_Parts = tuple[Callable[..., Any], Codec[Any], Callable[[Any], dict[str, Any]]]
"""What makes the payload of arguments, how it is encoded, and the arguments that it makes."""


def _one_model(function: Callable[..., Any], parameter: inspect.Parameter) -> _Parts:
    name = parameter.name

    def make(*args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) != 1 or (kwargs and name not in kwargs):
            raise TypeError
        return args[0] if args else kwargs[name]

    if parameter.default is not parameter.empty:
        raise _refused(function, f"gives {name!r} a default: give the fields of its type defaults")
    codec = _codec(function, parameter.annotation, repr(name))
    return make, codec, lambda data: {name: data}


def _fields(function: Callable[..., Any], signature: inspect.Signature) -> _Parts:
    fields: list[Any] = []
    named: list[Any] = []
    for parameter in signature.parameters.values():
        codec = _codec(function, parameter.annotation, repr(parameter.name))
        of_kind = named if parameter.kind is parameter.KEYWORD_ONLY else fields
        if parameter.default is parameter.empty:
            of_kind.append((parameter.name, parameter.annotation))
            continue
        try:
            codec.encode(parameter.default, "its value")
        except PayloadError as error:
            raise _refused(
                function, f"gives {parameter.name!r} a default that does not fit {codec.name}: {error}"
            ) from None
        of_kind.append((parameter.name, parameter.annotation, parameter.default))
    try:
        struct = _struct(function, fields)
        if named:
            struct = _struct(function, named, bases=(struct,), kw_only=True)
    except (TypeError, ValueError) as error:
        raise _refused(function, f"cannot be a contract: {error}") from None
    payload = _codec(function, struct, "its parameters", made_of_arguments=True)
    return struct, payload, msgspec.structs.asdict


def _struct(function: Callable[..., Any], fields: list[Any], **options: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        function.__name__, fields, frozen=True, gc=False, module=function.__module__, **options
    )


def _handler(
    function: Callable[..., Any],
    takes_context: bool,
    provided: Mapping[str, Any],
    arguments: Callable[[Any], dict[str, Any]],
) -> Call:
    """The function as a worker calls it. Of an `async def` it returns what is to be awaited."""
    if provided:

        @wraps(function)
        def with_values(command: Command[Any], context: Any) -> Any:
            values = {name: context.provided(kind) for name, kind in provided.items()}
            first = (context,) if takes_context else ()
            return function(*first, **arguments(command.data), **values)

        return with_values

    @wraps(function)
    def with_context(command: Command[Any], context: Any) -> Any:
        return function(context, **arguments(command.data))

    @wraps(function)
    def without(command: Command[Any], context: Any) -> Any:
        return function(**arguments(command.data))

    return with_context if takes_context else without
