"""How a process is declared: a class with a state, and methods that say what its steps do.

The methods decide and do nothing else: they are given the state, and a reply where there is one,
change the state and say what comes next. They never wait, so one declaration serves both runtimes.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, ClassVar, Generic, TypeVar, overload

import msgspec

from commandbus.domain import payload
from commandbus.domain.command import SendRequest
from commandbus.domain.misfit import describe_misfit
from commandbus.domain.moment import SECOND, Duration, as_seconds
from commandbus.domain.names import as_name
from commandbus.errors import CommandBusError, ConfigurationError, InvalidArgumentError

S = TypeVar("S")
Method = Callable[..., Any]
M = TypeVar("M", bound=Method)

END = "commandbus:end"
"""Returned by a reply method, or given as `then`: nothing follows on this branch."""


class WaitFor(msgspec.Struct, frozen=True):
    """A step that waits for a signal to the process."""

    signal: str


class StartProcess(msgspec.Struct, frozen=True):
    """A step that runs another process, and waits for its end. `state` is its first state."""

    process: type[Process[Any]]
    state: Any = None


Action = SendRequest | WaitFor | StartProcess | None


class Step:
    """A step of a process, made by `@step`; its decorators add what happens afterwards."""

    def __init__(
        self,
        build: Method,
        then: Any,
        fork: Iterable[Any],
        joins: Iterable[Any],
        or_else: Any,
        timeout: Duration | None,
    ) -> None:
        self.build = build
        self.name = build.__name__
        self.fork = _names(fork)
        self.joins = _names(joins)
        self.or_else = _names([] if or_else is None else or_else)
        self.declared_then = None if then is None else _names(then)
        self.then: tuple[str, ...] = ()
        self.timeout = (
            None if timeout is None else int(as_seconds(timeout, "timeout", minimum=0.001) * SECOND)
        )
        self.on_reply: Method | None = None
        self.on_failure: Method | None = None
        self.undo: Method | None = None
        self.__doc__ = build.__doc__

    def reply(self, method: M) -> M:
        """Decorates the method that is called with (state, reply) when the step has succeeded. It
        returns the next step, several to run at once, END, or None for the declared one."""
        self.on_reply = method
        return method

    def failure(self, method: M) -> M:
        """Decorates the method that is called with (state, reply) when the step was refused or
        canceled. It returns a step to go on with, or None to undo what was done."""
        self.on_failure = method
        return method

    def compensation(self, method: M) -> M:
        """Decorates the method that says, given the state, how to undo the step."""
        self.undo = method
        return method

    def __repr__(self) -> str:
        return f"<step {self.name}>"


@overload
def step(method: Method) -> Step: ...


@overload
def step(
    *,
    then: Any = None,
    fork: Iterable[Any] = (),
    joins: Iterable[Any] = (),
    or_else: Any = None,
    timeout: Duration | None = None,
) -> Callable[[Method], Step]: ...


def step(
    method: Method | None = None,
    *,
    then: Any = None,
    fork: Iterable[Any] = (),
    joins: Iterable[Any] = (),
    or_else: Any = None,
    timeout: Duration | None = None,
) -> Step | Callable[[Method], Step]:
    """Declares a method as a step. Given the state, it returns what the step does: a SendRequest, a
    WaitFor, a StartProcess, or None when there is nothing to do.

    `then` names what may follow: one step, several to choose from in the reply method, or END; left
    out, it is the next step of the class. `fork` names steps that begin together, `joins` the steps
    that all have to arrive before this one begins. `or_else` names what the failure method may choose.
    After `timeout` seconds without a reply the step has failed.
    """

    def declare(build: Method) -> Step:
        return Step(build, then, fork, joins, or_else, timeout)

    return declare if method is None else declare(method)


class Process(Generic[S]):
    """Base of all declarations: `class PlaceOrder(Process[Order])` with `@step` methods.

    `process_type` is the class's name in lower case unless given; `reply_to` names the queue of its
    replies. After `timeout` seconds a process that is not finished is undone.
    """

    process_type: ClassVar[str] = ""
    reply_to: ClassVar[str] = ""
    timeout: ClassVar[Duration | None] = None
    steps: ClassVar[dict[str, Step]] = {}
    first_step: ClassVar[str] = ""
    state_type: ClassVar[Any] = Any
    deadline_us: ClassVar[int | None] = None

    def before_send(self, state: S, step: str, request: SendRequest) -> SendRequest:
        """Called before each command of a process is sent, with the name of its step; returns what
        is really to be sent. For headers, priorities, tags."""
        return request

    def result(self, state: S) -> Any:
        """The result for a process that runs this one as a step."""
        return None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "process_type" not in vars(cls):
            cls.process_type = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if "reply_to" not in vars(cls):
            cls.reply_to = f"{cls.process_type}.replies"
        as_name(cls.process_type, "process_type")
        as_name(cls.reply_to, "reply_to")
        cls.state_type = _state_type(cls)
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Step)}
        # Copies: what follows a step may be another one in a class that adds steps.
        cls.steps = {name: copy(declared) for name, declared in {**cls.steps, **own}.items()}
        for name, declared in cls.steps.items():
            declared.name = name
            if hasattr(Process, name):
                raise ConfigurationError(
                    f"Process {cls.process_type!r} cannot have a step {name!r}: every process has "
                    "something else of that name; call the step differently."
                )
        if cls.timeout is not None:
            cls.deadline_us = int(as_seconds(cls.timeout, "timeout", minimum=0.001) * SECOND)
        if cls.steps:
            cls.first_step = next(iter(cls.steps))
            _connect(cls)

    @classmethod
    def new_state(cls, value: Any) -> Any:
        """A first state from an object of its type or from plain values; refused when it does not
        fit, and when it cannot be kept as JSON."""
        try:
            return cls.decode_state(payload.encode(value, what="state"))
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            if isinstance(error, CommandBusError):
                raise
            raise InvalidArgumentError(
                f"The state of process {cls.process_type!r} does not fit {cls.state_type!r}: "
                f"{describe_misfit(error)}."
            ) from None

    @classmethod
    def decode_state(cls, text: str) -> Any:
        """A state from what the store keeps."""
        validate = getattr(cls.state_type, "model_validate_json", None)  # pydantic
        if validate is not None:
            return validate(text)
        return msgspec.json.decode(text, type=cls.state_type)


def next_names(answer: Any) -> tuple[str, ...] | None:
    """What a reply method returned, as names of steps; None for the declared ones."""
    if answer is None:
        return None
    return _names(answer)


def require_declaration(value: Any) -> type[Process[Any]]:
    if isinstance(value, type) and issubclass(value, Process) and value.steps:
        return value
    raise ConfigurationError(
        f"{value!r} declares no process; pass a subclass of Process that has at least one @step."
    )


def _names(targets: Any) -> tuple[str, ...]:
    if isinstance(targets, str | Step) or not isinstance(targets, Iterable):
        targets = [targets]
    found: list[str] = []
    for target in targets:
        if isinstance(target, Step):
            found.append(target.name)
        elif isinstance(target, str):
            found.append(target)
        else:
            raise ConfigurationError(f"{target!r} is no step; name it, or give the step itself.")
    return tuple(found)


def _state_type(cls: type) -> Any:
    for base in getattr(cls, "__orig_bases__", ()):
        if typing.get_origin(base) is Process:
            (argument,) = typing.get_args(base)
            return Any if isinstance(argument, TypeVar) else argument
    return cls.state_type  # type: ignore[attr-defined]


def _connect(cls: type[Process[Any]]) -> None:
    """Check what steps say of each other, and fill in what they leave out."""
    order = list(cls.steps)
    branches = {name for declared in cls.steps.values() for name in declared.fork}
    for position, declared in enumerate(cls.steps.values()):
        where = f"Step {declared.name!r} of process {cls.process_type!r}"
        for name in (
            *declared.fork,
            *declared.joins,
            *declared.or_else,
            *(declared.declared_then or ()),
        ):
            if name not in cls.steps and name != END:
                raise ConfigurationError(f"{where} names {name!r}, which is no step of it.")
        if declared.fork and declared.declared_then is not None:
            raise ConfigurationError(f"{where} has both then= and fork=; only one can follow.")
        if declared.declared_then is not None:
            declared.then = tuple(name for name in declared.declared_then if name != END)
            if len(declared.declared_then) > 1 and declared.on_reply is None:
                raise ConfigurationError(
                    f"{where} names several steps that may follow, but no method chooses; add one "
                    f"decorated with @{declared.name}.reply, or use fork= to run them all."
                )
        elif declared.fork:
            declared.then = ()
        elif declared.name in branches:
            joining = [other.name for other in cls.steps.values() if declared.name in other.joins]
            if len(joining) != 1:
                raise ConfigurationError(
                    f"{where} is one of several that run at once; say with then= what follows."
                )
            declared.then = tuple(joining)
        else:
            declared.then = tuple(order[position + 1 : position + 2])
