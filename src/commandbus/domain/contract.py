"""Typed commands: the contract of a command as an object.

A contract says in which domain a command type lives, which payload it takes and which result it gives.
Calling it makes a request, a value that is checked at once; nothing is sent and nothing runs. Senders
and handlers share the contract, so a wrong name or field is an error of the type checker and of the
call, not of another process.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from commandbus.domain import command as requests
from commandbus.domain.codec import Codec, is_pydantic
from commandbus.domain.command import CommandRecord, SendRequest, TypedRequest
from commandbus.domain.defaults import Defaults
from commandbus.domain.misfit import describe_misfit
from commandbus.domain.names import as_command_type, as_name
from commandbus.domain.payload import check_size
from commandbus.domain.reply import Reply
from commandbus.errors import ConfigurationError, PayloadError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class CommandType(Generic[P, R]):
    """A command type: its domain and name, its payload and its result.

    Calling it makes a request for `send`, `send_many`, `request`, batches and schedules. Raises
    TypeError for missing, extra and unknown arguments, as a function does, and PayloadError, which
    names the field, for values that do not fit.
    """

    def __init__(
        self,
        domain: str,
        command_type: str,
        make: Callable[P, Any],
        payload: Codec[Any],
        result: Codec[R],
    ) -> None:
        self.domain = as_name(domain, "domain")
        self.command_type = as_command_type(command_type)
        self.payload = payload
        self.result = result
        self.__signature__: inspect.Signature | None = None
        self._make = make
        """Makes the payload of the arguments."""
        self._encode = payload.encode
        self._what = f"The arguments of {self} do not fit"
        self.defaults: Defaults | None = None
        """Options of all its requests, which a send may replace."""

    def __str__(self) -> str:
        return f"{self.domain}.{self.command_type}"

    def __repr__(self) -> str:
        return f"<command {self}: call it to make a request>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> SendRequest[R]:
        try:
            data = self._make(*args, **kwargs)
        except TypeError as error:
            raise self._explained(error, args, kwargs) from None
        text = self._encode(data, self._what)
        request = TypedRequest(self.domain, self.command_type, data, contract=self, text=text)
        return request if self.defaults is None else self.defaults.apply(request)

    def _explained(self, error: TypeError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError:
        """The error of a function with the same parameters, if they are what is wrong."""
        if self.__signature__ is not None:
            try:
                self.__signature__.bind(*args, **kwargs)
            except TypeError as wrong:
                return TypeError(f"{self.command_type}() {wrong}")
        return error

    def check(self, text: str) -> None:
        """Raise PayloadError when a payload (JSON text) does not fit."""
        try:
            self.payload.decode(text)
        except Exception as error:  # the validation of a type may raise anything
            raise PayloadError(
                f"The payload does not fit {self.payload.name} of {self}: {describe_misfit(error)}"
            ) from None  # the cause may quote the payload

    def encode_result(self, value: R) -> str | None:
        """A result as JSON text. Raises PayloadError when it does not fit."""
        text = self.result.encode(value, f"the result of {self}")
        return None if value is None else check_size(text, what=f"the result of {self}")

    def result_of(self, ended: Reply | CommandRecord[Any]) -> R:
        """The result in a reply or a record, decoded. Raises PayloadError when it does not fit."""
        return self.decode_result(ended.result)

    def decode_result(self, plain: Any) -> R:
        """Plain JSON values as a result. Raises PayloadError when they do not fit."""
        try:
            return self.result.convert(plain)
        except Exception as error:  # the validation of a type may raise anything
            raise PayloadError(
                f"The result of {self} does not fit {self.result.name}: {describe_misfit(error)}. "
                "Ask by the command's id alone to get it as plain values."
            ) from None


class ModelCommandType(CommandType[P, R], Generic[P, R, T]):
    """A command type whose payload is a class; see `command_type`."""

    @overload
    def __call__(self, payload: T, /) -> SendRequest[R]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> SendRequest[R]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> SendRequest[R]:
        return super().__call__(*args, **kwargs)


@overload
def command_type(
    domain: str, command_type: str, payload: Callable[P, T], result: type[R]
) -> ModelCommandType[P, R, T]: ...
@overload
def command_type(
    domain: str, command_type: str, payload: Callable[P, T], result: None = None
) -> ModelCommandType[P, None, T]: ...
def command_type(domain: str, command_type: str, payload: Any, result: Any = None) -> Any:
    """The contract of a command whose code is elsewhere, for senders.

    `payload` is a dataclass, msgspec Struct, pydantic model or TypedDict, `result` the type of the
    result. Called with an instance of the payload, or with the arguments of its constructor. Raises
    ConfigurationError for types that have no JSON form.
    """
    what = f"{domain}.{command_type}"
    if not is_model(payload):
        raise ConfigurationError(
            f"The payload of {what} must be a dataclass, msgspec Struct, pydantic model or TypedDict, "
            f"not {payload!r}."
        )
    made = _constructor(payload, what)
    return ModelCommandType(
        domain,
        command_type,
        made,
        codec_of(payload, f"payload of {what}"),
        codec_of(result, f"result of {what}"),
    )


def _constructor(kind: Any, what: str) -> Callable[..., Any]:
    """From an instance, or the arguments of its class, to an instance."""
    origin = typing.get_origin(kind) or kind
    instance_of = dict if typing.is_typeddict(origin) else origin

    def make(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], instance_of):
            return args[0]
        try:
            return kind(*args, **kwargs)
        except ValueError as error:  # of pydantic, or of the validation of the class
            raise PayloadError(
                f"The arguments of {what} do not fit: {describe_misfit(error)}."
            ) from None  # the cause may quote values

    return make


def is_model(kind: Any) -> bool:
    """Whether a type is a document with named fields: a payload of its own. `Box[int]` is, as `Box`."""
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type):
        return False
    return (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or typing.is_typeddict(kind)
        or is_pydantic(kind)
    )


def codec_of(kind: Any, what: str) -> Codec[Any]:
    """The codec of a type, or ConfigurationError that names what has no JSON form."""
    try:
        return Codec(kind)
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"The {what} is {kind!r}, which has no JSON form: {error}.") from None


# Requests name their contract in annotations, which `inspect.signature` looks up in their own module.
requests.__dict__["CommandType"] = CommandType
