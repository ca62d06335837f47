"""Handlers: which function carries out which command, and how its payload is decoded."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import (
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from commandbus.domain import payload
from commandbus.domain.breaker import CircuitBreaker
from commandbus.domain.codec import Codec
from commandbus.domain.command import SEND_DEFAULTS, SendOptions, SendRequest, as_request
from commandbus.domain.contract import CommandType
from commandbus.domain.defaults import Defaults
from commandbus.domain.limits import Limit
from commandbus.domain.misfit import describe_misfit
from commandbus.domain.names import as_name
from commandbus.domain.priority import Priority
from commandbus.domain.process.declaration import Process, require_declaration
from commandbus.domain.retry import RetryPolicy
from commandbus.domain.schedule import Misfire, Schedule
from commandbus.domain.shown import shows_options
from commandbus.errors import (
    ConfigurationError,
    HandlerAlreadyRegisteredError,
    HandlerNotFoundError,
    PayloadError,
)
from commandbus.worker.exception_rules import (
    ErrorMap,
    ErrorRule,
    check_error_class,
    check_error_rule,
    check_errors,
    translate,
)
from commandbus.worker.isolation.options import Isolated, isolated_of
from commandbus.worker.lifespan import L, Lifespan, check_lifespan
from commandbus.worker.marking import MARK, Function, Mark
from commandbus.worker.middleware import Middleware, check_middleware
from commandbus.worker.options import (
    HandlerOptions,
    check_options,
    defaults_of,
    limit_of,
    seconds_of,
    two_of_one_name,
)
from commandbus.worker.providing import inject
from commandbus.worker.signatures import (
    Decode,
    described,
    is_async,
    payload_codec,
    payload_type_of,
    provided_parameters,
)
from commandbus.worker.typed import (
    AsyncCommandType,
    CommandDecorator,
    FunctionCommandType,
    SyncCommandType,
    WithContext,
    WithSyncContext,
    command_of,
)

Layer = TypeVar("Layer", bound=Middleware)
P = ParamSpec("P")
R = TypeVar("R")
Target = TypeVar("Target")
Declaration = TypeVar("Declaration", bound=type[Process[Any]])


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler and everything a worker must know to call it."""

    domain: str
    command_type: str
    function: Callable[..., Any]
    is_async: bool
    decode: Decode
    payload_type: Any
    retry: RetryPolicy | None = None
    timeout: float | None = None
    breaker: CircuitBreaker | None = None
    transactional: bool = False
    total_timeout: float | None = None
    errors: ErrorMap | None = None
    defaults: Defaults | None = None
    """Of all requests of its command."""
    contract: CommandType[..., Any] | None = None
    """Of a typed command; encodes its result."""
    registry: HandlerRegistry | None = None
    """Where it was registered: the middleware and the error rules of that registry are its own."""
    isolated: Isolated | None = None
    """It runs in a child process."""

    @property
    def layers(self) -> tuple[Middleware, ...]:
        """The middleware around it, the first one outermost."""
        return () if self.registry is None else self.registry.layers

    @property
    def payload_name(self) -> str:
        """What it takes, for messages."""
        kind = self.payload_type
        return "any JSON" if kind is Any else getattr(kind, "__name__", str(kind))


class HandlerRegistry:
    """Handlers by (domain, command type). One type has one handler.

    `command` makes typed commands of plain functions, in the `domain` of the registry. A function
    under `handler` is called with (command, context), and with the values that its parameters
    annotated `Provided[T]` ask for. Both may be `def` or `async def` in both runtimes, and what they
    return is the result of the command.
    """

    def __init__(self, domain: str | None = None) -> None:
        self.domain = None if domain is None else as_name(domain, "domain")
        """The domain of its typed commands."""
        self._handlers: MutableMapping[tuple[str, str], Handler] = {}
        self._errors: dict[type[BaseException], ErrorRule] = {}
        self.layers: tuple[Middleware, ...] = ()
        """Middleware around all handlers, the first one outermost."""
        self.processes: dict[str, type[Process[Any]]] = {}
        """The processes that workers drive on, by their types."""
        self.schedules: dict[str, Schedule] = {}
        """Those that are declared beside their handlers, by name."""
        self.limits: list[Limit] = []
        """Those that are declared with their handlers."""
        self._keys: dict[int, tuple[str, str]] = {}
        self.lifespans: tuple[Lifespan, ...] = ()
        """What a worker starts before its first claim, in this order, and stops in reverse."""

    @shows_options()
    def handler(
        self, domain: str, command_type: str, **options: Unpack[HandlerOptions]
    ) -> Callable[[Function], Function]:
        """Register the decorated function.

        `retry` overrides the worker's policy. `timeout` bounds each run in seconds, `total_timeout`
        all of them together, from when the command was due. With `breaker` (a target's name, or a
        CircuitBreaker for other numbers) commands are put off, without using an attempt, while that
        target does not answer. `transactional` gives the handler a transaction in which its effects,
        its follow-ups and its outcome commit together. `errors` says what exceptions mean; see
        `map_exception`. `rate` ("10/m") and `concurrency` are a limit of the whole fleet for this
        type, which workers set when they start; see `CommandBus.set_limit`.

        With `isolation="process"` it runs in a child process: `timeout` kills it, `memory` ("256MB")
        bounds it, and a crash costs one attempt of its command. `soft_timeout` raises HandlerTimeout
        in it before the kill. The handler must be a function at the top level of a module.

        `priority`, `expires` (seconds after it is due), `group_key` and `unique_key` (functions of
        the payload), `tags` and `requires` are defaults of its requests: those that a typed command
        makes, and those of `request`.
        """

        def decorate(function: Function) -> Function:
            self.register(domain, command_type, function, **options)
            return function

        return decorate

    @overload
    def command(self, function: WithContext[P, Awaitable[R]], /) -> AsyncCommandType[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def command(self, function: WithContext[P, R], /) -> SyncCommandType[P, R]: ...
    @overload
    def command(self, function: WithSyncContext[P, R], /) -> SyncCommandType[P, R]: ...
    @overload
    def command(self, function: Callable[P, Awaitable[R]], /) -> AsyncCommandType[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def command(self, function: Callable[P, R], /) -> SyncCommandType[P, R]: ...
    @overload
    def command(
        self, name: str | None = None, /, **options: Unpack[HandlerOptions]
    ) -> CommandDecorator: ...
    @shows_options()
    def command(self, function: Any = None, /, **options: Unpack[HandlerOptions]) -> Any:
        """Make a typed command of the function below: its parameters are the payload, its return type
        the result, its name, or the one that is given, the command type.

        As `@payments.command`, or with the options of `handler`. A first parameter annotated
        `HandlerContext` (`SyncHandlerContext` of a `def`) gets the context, parameters annotated
        `Provided[T]` what the worker provides. One parameter that is a dataclass, msgspec Struct,
        pydantic model or TypedDict is the whole payload. Raises
        ConfigurationError, with the file and line of the function, when its signature cannot be a
        contract, HandlerAlreadyRegisteredError for a second command of one name.
        """
        name = function if isinstance(function, str) else None
        names = sys._getframe(1).f_locals
        if function is not None and name is None:
            return self._command(function, None, names, options)
        return lambda function: self._command(function, name, names, options)

    def _command(
        self, function: Any, name: str | None, names: Mapping[str, Any], options: HandlerOptions
    ) -> CommandType[..., Any]:
        if self.domain is None:
            raise ConfigurationError(
                f"The command {described(function)} has no domain: name one, as in "
                'HandlerRegistry("payments").'
            )
        made = command_of(function, self.domain, name, names)
        self._add(made.domain, made.command_type, made.handler, made.payload, options, made)
        return made

    def middleware(self, function: Layer) -> Layer:
        """Put a generator with one yield around every handler; the first one is outermost. An
        `async def` one needs handlers that are `async def` as well. Raises ConfigurationError for
        anything else."""
        self.layers = (*self.layers, check_middleware(function))
        return function

    @shows_options(SEND_DEFAULTS)
    def request(
        self, domain: str, command_type: str, data: Any = None, **options: Unpack[SendOptions]
    ) -> SendRequest[Any]:
        """A request with the defaults that its handler declares, for `send`, `send_many` and batches.
        Raises HandlerNotFoundError."""
        found = self.get_or_raise(domain, command_type)
        request = as_request(domain, command_type, data, options)
        return request if found.defaults is None else found.defaults.apply(request)

    def schedule(
        self,
        *,
        cron: str | None = None,
        every: float | None = None,
        name: str | None = None,
        data: Any = None,
        timezone: str = "UTC",
        misfire: Misfire | str = Misfire.ONCE,
        priority: Priority | None = None,
        overlap: Literal["allow", "skip"] = "allow",
    ) -> Callable[[Target], Target]:
        """Declare a schedule beside a handler: `@registry.schedule(cron="0 2 * * *")` above
        `@registry.handler(…)`. The arguments are the fields of `Schedule`; `name` is the domain and
        the type, unless given. Its commands have the defaults of the handler's requests. Workers bring
        it into the store when they start, without undoing what an operator changed. Raises
        ConfigurationError, and PayloadError when `data` does not fit the handler.
        """

        def declare(target: Target) -> Target:
            domain, command_type = self._key_of(target)
            schedule = Schedule(
                name=name or f"{domain}.{command_type}",
                request=self._repeated(domain, command_type, data),
                cron=cron,
                every=every,
                timezone=timezone,
                misfire=cast("Misfire", misfire),
                priority=priority,
                overlap=overlap,
            ).checked()
            if schedule.name in self.schedules:
                raise two_of_one_name("schedules", schedule.name, "name=")
            self.schedules[schedule.name] = msgspec.structs.replace(schedule, misfire=Misfire(misfire))
            return target

        return declare

    def _repeated(self, domain: str, command_type: str, data: Any) -> SendRequest[Any]:
        """The request of a schedule, with the defaults that its handler declares."""
        found = self._handlers[domain, command_type]
        if data is None and found.contract is not None:
            data = {}  # its parameters have defaults, or the check says which have none
        text = payload.encode(data)
        self.check_payload(domain, command_type, text)
        decoded = data if found.contract is None else found.decode(text)
        request = self.request(domain, command_type, decoded)
        return msgspec.structs.replace(request, data=data)

    def _key_of(self, target: Any) -> tuple[str, str]:
        """The domain and the type of what a declaration is beside."""
        found = self._keys.get(id(target))
        if found is None and isinstance(getattr(target, "command_type", None), str):
            found = (target.domain, target.command_type)
        if found is None or found not in self._handlers:
            raise ConfigurationError(
                f"{described(target)} is no handler of this registry: write @registry.schedule(…) "
                "above @registry.handler(…)."
            )
        return found

    def process(self, declaration: Declaration) -> Declaration:
        """Register a process, as a decorator of its class or by a call: workers with this registry
        drive it on, beside their handlers. Raises ConfigurationError for what is no Process, and for
        a second one of the same process_type."""
        found = require_declaration(declaration)
        if self.processes.setdefault(found.process_type, found) is not found:
            raise two_of_one_name("processes", found.process_type, "process_type")
        return declaration

    def lifespan(self, function: L) -> L:
        """Run a generator with one yield, `def` or `async def`, around the work of each worker: up to
        its yield before the first claim, to its end after the last handler. Several start in order and
        stop in reverse. It may yield a mapping of values for handlers, by type: a parameter
        annotated `Provided[T]` gets the value of T, and so does `context.provided(T)`.

        What it raises at start is raised by the worker's `run()` as LifespanError. Raises
        ConfigurationError for anything but a generator function without parameters.
        """
        self.lifespans = (*self.lifespans, check_lifespan(function))
        return function

    def map_exception(self, kind: type[BaseException], means: ErrorRule) -> None:
        """Say what an exception means, for all handlers: TransientCommandError,
        PermanentCommandError or BusinessRuleException, or a function from the exception to what is
        to be judged instead. The nearest class counts, and a handler's own `errors` come first."""
        self._errors[check_error_class(kind)] = check_error_rule(means)

    def translate(self, error: BaseException, handler: Handler | None) -> BaseException:
        """The exception that is to be judged."""
        if handler is not None and handler.errors:
            translated = translate(error, handler.errors)
            if translated is not error:
                return translated
        return translate(error, self._errors) if self._errors else error

    def check_payload(self, domain: str, command_type: str, data: str) -> None:
        """Raise PayloadError when a payload (JSON text) does not fit its handler, if there is one."""
        found = self.get(domain, command_type)
        if found is None:
            return
        try:
            found.decode(data)
        except Exception as error:  # a payload type may raise anything in its validation
            raise PayloadError(
                f"The payload does not fit {found.payload_name} of the handler for {command_type!r} "
                f"in domain {domain!r}: {describe_misfit(error)}"
            ) from None  # the cause may quote the payload, and tracebacks are kept

    @shows_options()
    def register(
        self,
        domain: str,
        command_type: str,
        function: Callable[..., Any],
        **options: Unpack[HandlerOptions],
    ) -> Handler:
        """Register a function or bound method.

        Raises HandlerAlreadyRegisteredError for a second one of the same type, and
        ConfigurationError when it cannot be called with (command, context), its payload type cannot be
        decoded from JSON, or an option is wrong or unknown.
        """
        payload_type = payload_type_of(function)
        codec = payload_codec(function, payload_type)
        return self._add(domain, command_type, function, codec, options)

    def _add(
        self,
        domain: str,
        command_type: str,
        function: Callable[..., Any],
        codec: Codec[Any],
        options: HandlerOptions,
        contract: FunctionCommandType[..., Any] | None = None,
    ) -> Handler:
        key = (as_name(domain, "domain"), as_name(command_type, "command_type"))
        if key in self._handlers:
            raise HandlerAlreadyRegisteredError(
                *key, places=(described(self._handlers[key].function), described(function))
            )
        check_options(function, options)
        limit = limit_of(function, key, options)
        breaker = options.get("breaker")
        provided = provided_parameters(function) if contract is None else {}
        plain = function if contract is None else contract.function
        isolated = isolated_of(plain, options, provided if contract is None else contract.provided)
        registered = Handler(
            domain,
            command_type,
            inject(function, provided),
            is_async=is_async(plain),
            decode=codec.decode,
            payload_type=codec.kind,
            retry=options.get("retry"),
            timeout=seconds_of(options.get("timeout"), "timeout"),
            breaker=CircuitBreaker(breaker) if isinstance(breaker, str) else breaker,
            transactional=options.get("transactional", False),
            total_timeout=seconds_of(options.get("total_timeout"), "total_timeout"),
            errors=check_errors(options.get("errors")),
            contract=contract,
            registry=self,
            defaults=defaults_of(function, options),
            isolated=isolated,
        )
        if contract is not None:
            contract.defaults = registered.defaults
        if limit is not None:
            self.limits.append(limit)
        self._handlers[key] = registered
        self._keys[id(function)] = key
        return registered

    def register_instance(self, instance: object) -> list[tuple[str, str]]:
        """Register every method of an object that is marked with `@handler`; returns what was
        registered. Raises ConfigurationError when there is none."""
        found: list[tuple[str, str]] = []
        for name in dir(type(instance)):
            mark = getattr(getattr(type(instance), name, None), MARK, None)
            if isinstance(mark, Mark):
                method = getattr(instance, name)
                self.register(mark.domain, mark.command_type, method, **mark.options)
                found.append((mark.domain, mark.command_type))
        if not found:
            raise ConfigurationError(
                f"{type(instance).__name__} has no method marked with @handler(domain, command_type)."
            )
        return found

    @property
    def domains(self) -> tuple[str, ...]:
        """Its own domain and those of its handlers."""
        own = () if self.domain is None else (self.domain,)
        return tuple(dict.fromkeys((*own, *(domain for domain, _ in self._handlers))))

    @classmethod
    def union(cls, registries: Sequence[HandlerRegistry]) -> HandlerRegistry:
        """The handlers of several registries, each with the middleware and the error rules of its own.
        Raises HandlerAlreadyRegisteredError when two of them have a handler for one type."""
        if len(registries) == 1:
            return registries[0]
        places: dict[tuple[str, str], Handler] = {}
        for found in (handler for registry in registries for handler in registry):
            first = places.setdefault((found.domain, found.command_type), found)
            if first is not found:
                both = (described(first.function), described(found.function))
                raise HandlerAlreadyRegisteredError(found.domain, found.command_type, places=both)
        combined = cls()
        combined.lifespans = tuple(one for registry in registries for one in registry.lifespans)
        combined.limits = [one for registry in registries for one in registry.limits]
        for registry in registries:
            for name, schedule in registry.schedules.items():
                if combined.schedules.setdefault(name, schedule) is not schedule:
                    raise two_of_one_name("schedules", name, "name=")
            for process in registry.processes.values():
                combined.process(process)
        combined._handlers = ChainMap(*(registry._handlers for registry in registries))
        return combined

    def adapted(self, change: Callable[[Handler], Handler]) -> HandlerRegistry:
        """The same registry with other handlers; this one stays as it is."""
        changed = copy(self)
        changed._handlers = {
            (found.domain, found.command_type): change(found) for found in self._handlers.values()
        }
        return changed

    def get(self, domain: str, command_type: str) -> Handler | None:
        """The handler of a type, or None."""
        return self._handlers.get((domain, command_type))

    def get_or_raise(self, domain: str, command_type: str) -> Handler:
        """The handler of a type. Raises HandlerNotFoundError."""
        found = self.get(domain, command_type)
        if found is None:
            raise HandlerNotFoundError(domain, command_type)
        return found

    def has_handler(self, domain: str, command_type: str) -> bool:
        """Whether a type has a handler."""
        return (domain, command_type) in self._handlers

    def registered_handlers(self) -> list[tuple[str, str]]:
        """The domains and types that have handlers."""
        return list(self._handlers)

    def __iter__(self) -> Iterator[Handler]:
        return iter(list(self._handlers.values()))

    def clear(self) -> None:
        """Forget all handlers."""
        self._handlers.clear()
