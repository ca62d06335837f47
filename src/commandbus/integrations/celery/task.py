"""`Task`: a function as a typed command, with Celery's way of calling, retrying and looking at it."""

from __future__ import annotations

import inspect
import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, cast

from commandbus.domain import payload
from commandbus.domain.cause import running
from commandbus.domain.command import Command
from commandbus.domain.contract import CommandType, is_model
from commandbus.domain.ids import new_id
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import (
    BusinessRuleException,
    CommandBusError,
    CommandCanceled,
    ConfigurationError,
    HandlerError,
    PermanentCommandError,
    RetryAfter,
    Snooze,
    TransientCommandError,
)
from commandbus.integrations.celery import canvas
from commandbus.integrations.celery.conf import Conf
from commandbus.integrations.celery.exceptions import (
    ExceptionInfo,
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
)
from commandbus.integrations.celery.lacking import TASKS, lack
from commandbus.integrations.celery.options import aware, bus_priority, check_task_options
from commandbus.integrations.celery.places import refused
from commandbus.integrations.celery.request import (
    HEADER,
    Request,
    current_request,
    request_of,
)
from commandbus.integrations.celery.result import AsyncResult, EagerResult
from commandbus.integrations.celery.signatures import signature_of
from commandbus.integrations.celery.states import FAILURE, SUCCESS
from commandbus.integrations.celery.timing import SoftLimit
from commandbus.worker.context import SyncHandlerContext
from commandbus.worker.handlers import HandlerRegistry
from commandbus.worker.options import HandlerOptions

if TYPE_CHECKING:
    from commandbus.integrations.celery.app import Celery

P = ParamSpec("P")
R = TypeVar("R")

ATTEMPTS_MAX = 32_767
"""The bus sets no bound of its own: max_retries is counted here, as `retry` may raise it."""
NO_LIMIT_SECONDS = 366 * 86_400
"""The timeout of a task without a time limit, which with Celery may run for ever: without any, a worker
would give its thread up after the lease and 5 s."""
META_CHARACTERS_MAX = 500
_IGNORED: Any = object()
"""In place of a result: nothing follows a task that raised Ignore."""
_log = logging.getLogger(__name__)
_context: ContextVar[SyncHandlerContext | None] = ContextVar("commandbus_celery_context", default=None)


class Task(Generic[P, R]):
    """A task. Subclasses, given as `base=`, as `app.Task` or to `app.register_task`, may have a
    `__call__` around `run` and the hooks of Celery: before_start, on_success, on_retry, on_failure and
    after_return."""

    abstract = True
    name: str = ""
    has_base = False
    """Whether the program has chosen its class; else it is that of the app."""
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: Iterable[type[BaseException]] = ()
    dont_autoretry_for: Iterable[type[BaseException]] = ()
    retry_kwargs: Mapping[str, Any] = {}
    retry_backoff: bool | float = False
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    rate_limit: str | float | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    ignore_result: bool | None = None
    priority: int | None = None
    expires: float | timedelta | None = None
    throws: Iterable[type[BaseException]] = ()
    queue: str | None = None

    def become(
        self,
        function: Callable[..., R],
        name: str,
        app: Callable[[], Celery],
        bind: bool,
        options: Mapping[str, Any],
        place: str,
    ) -> None:
        """Take on what the task does. Not `__init__`, which subclasses have without arguments."""
        self.function, self.name, self.bind, self.place = function, name, bind, place
        vars(self)["run"] = MethodType(function, self) if bind else function
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__name__, self.__wrapped__ = function.__name__, function
        self._app = app
        check_task_options(name, options, place)
        for option, value in options.items():
            if option not in ("name", "base"):
                setattr(self, option, value)
        self.signature_of_function = signature_of(function, bind, place)

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"

    if not TYPE_CHECKING:  # a type checker knows which names there are

        def __getattr__(self, name: str) -> Any:
            return lack("Task", name, TASKS)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, as any function."""
        return self.run(*args, **kwargs)  # type: ignore[no-any-return]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """What the task does: the function below `@app.task`, or the method of a class."""
        raise TypeError(f"{type(self).__name__} needs a method run().")

    @property
    def app(self) -> Celery:
        return self._app()

    @property
    def command(self) -> CommandType[P, R]:
        """The typed command of the task: `bus.send(task.command(order=7))`."""
        found = self.app.contract(self, self.app.queue_of(self.name, {}))
        return cast("CommandType[P, R]", found)

    @property
    def names(self) -> dict[str, Any]:
        """What its module defines, among which the class of its exception is looked up."""
        return getattr(self.function, "__globals__", {})

    @property
    def sees_its_call(self) -> bool:
        """Whether its code sees which arguments were positional: in self.request, and in hooks."""
        return self.bind or type(self) is not Task

    @property
    def takes_model(self) -> bool:
        """Whether its only parameter is the whole payload."""
        parameters = list(self.signature_of_function.parameters.values())
        return len(parameters) == 1 and is_model(parameters[0].annotation)

    # Calling

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]:
        """Send the task with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        link: Any = None,
        link_error: Any = (),
        **options: Any,
    ) -> AsyncResult[R]:
        """Send the task: countdown, eta, expires (seconds or a time), priority, queue, task_id (a
        UUID), headers, link and link_error. Raises TypeError for arguments that do not fit,
        PayloadError for values that are no JSON, DuplicateCommandError for a task_id that was sent,
        NotPortable for other options."""
        if task_id is not None:
            options["task_id"] = task_id
        called = canvas.Signature(self, args or (), dict(kwargs or {}), options)
        called.on_error(link_error)
        plan = called.plan()
        if link is not None:
            links = link if isinstance(link, list | tuple) else [link]
            plan += links[0].plan() if len(links) == 1 else canvas.group(*links).plan()
        found = canvas.begin(self.app, plan)
        if link is not None:
            while found.parent is not None:
                found = found.parent
        return found  # type: ignore[no-any-return]

    def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send the task when the transaction of Django commits."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **options: Any) -> None:
        """As `apply_async`, when the transaction of Django commits."""
        from django.db import transaction

        transaction.on_commit(lambda: self.apply_async(*args, **options))

    def s(self, *args: Any, **kwargs: Any) -> canvas.Signature[R]:
        """A call that is not made yet; in a chain it gets the result before as its first argument."""
        return canvas.Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> canvas.Signature[R]:
        """A call that takes no result of another."""
        return canvas.Signature(self, args, kwargs, immutable=True)

    def signature(
        self,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        immutable: bool = False,
        **options: Any,
    ) -> canvas.Signature[R]:
        """As `s`, with options of `apply_async`."""
        return canvas.Signature(self, args, kwargs, options, immutable)

    subtask = signature

    def AsyncResult(self, task_id: str) -> AsyncResult[R]:  # noqa: N802 - Celery's name
        return AsyncResult(task_id, self.app)

    def apply(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **_: Any
    ) -> EagerResult[R]:
        """Run the task here, with its retries but without waiting between them."""
        task_id = str(new_id())
        for retries in range(ATTEMPTS_MAX):
            request = Request(
                task_id,
                self.name,
                retries,
                dict(kwargs or {}),
                tuple(args),
                is_eager=True,
                called_directly=False,
            )
            token = current_request.set(request)
            try:
                return EagerResult(task_id, self._attempt(tuple(args), dict(kwargs or {})), SUCCESS)
            except Retry:
                continue
            except Exception as error:  # the task's own, which is its result
                return EagerResult(task_id, error, FAILURE)
            finally:
                current_request.reset(token)
        raise AssertionError("the retries have a bound")

    # While it runs

    @property
    def request(self) -> Request:
        """The delivery that runs in this thread."""
        return current_request.get() or Request()

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Run again after `countdown` seconds, at `eta` or after `default_retry_delay`: raises Retry,
        or returns it without `throw`. When the retries are used up it raises `exc`, else
        MaxRetriesExceededError."""
        if args is not None or kwargs is not None or options:
            raise refused(
                f"self.retry of task {self.name} with other arguments or options",
                "The payload of a command never changes: send another task, and return.",
            )
        request = self.request
        if request.called_directly:
            raise exc if exc is not None else Retry("the task was called directly, and is not retried")
        bound = self.max_retries if max_retries is None else max_retries
        if bound is not None and request.retries >= bound:
            if exc is not None:
                raise exc
            raise MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] more than {bound} times"
            )
        seconds = self.default_retry_delay if countdown is None else countdown
        if countdown is None and eta is not None:
            seconds = (aware(eta, self.app.conf.timezone) - datetime.now(UTC)).total_seconds()
        found = Retry(exc=exc, when=max(0.0, float(seconds)))
        if throw:
            raise found
        return found

    def update_state(self, state: str = "PROGRESS", meta: Any = None, **_: Any) -> None:
        """Show a state and its meta in `AsyncResult` while the task runs; both together have at most
        500 characters as JSON. `current` and `total` in meta are the progress in percent."""
        context = _context.get()
        if context is None:
            return
        text = json.dumps({"state": state, "meta": meta})
        if len(text) > META_CHARACTERS_MAX:
            raise refused(
                f"update_state of task {self.name} with {len(text)} characters",
                f"Keep state and meta below {META_CHARACTERS_MAX} characters of JSON.",
            )
        self.request.reported = state
        done, total = (meta.get("current"), meta.get("total")) if isinstance(meta, dict) else (0, 0)
        context.progress(min(100.0, max(0.0, 100 * done / total)) if done and total else 0.0, text)

    def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
        """Called before the function."""

    def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
        """Called after a success."""

    def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called before a retry."""

    def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called after the last failure; `str(einfo)` is the traceback."""

    def after_return(
        self, status: Any, retval: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called after a success and after the last failure."""

    # As a handler

    def handler(self) -> Callable[..., Any]:
        """The function that a worker calls, with the signature of the task after a context."""

        def run(context: SyncHandlerContext, **arguments: Any) -> Any:
            return self._run(context, arguments)

        first = inspect.Parameter(
            "context", inspect.Parameter.POSITIONAL_ONLY, annotation=SyncHandlerContext
        )
        own = self.signature_of_function
        signature = own.replace(parameters=[first, *own.parameters.values()])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__wrapped__ = self.function  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = self.__name__, self.__doc__
        run.__module__, run.__qualname__ = self.__module__, self.function.__qualname__
        return run

    def check(self) -> None:
        """Raises ConfigurationError where the signature or an option cannot be those of a command."""
        registry = HandlerRegistry("celery")
        try:
            registry.command(self.name, **self.handler_options(Conf()))(self.handler())
        except CommandBusError as error:
            raise ConfigurationError(f"{self.place}: {error}") from None

    def handler_options(self, conf: Conf) -> HandlerOptions:
        """The task's own options, and those of the app where it has none."""
        rate = conf.task_default_rate_limit if self.rate_limit is None else self.rate_limit
        priority = conf.task_default_priority if self.priority is None else self.priority
        options: HandlerOptions = {
            "retry": RetryPolicy(ATTEMPTS_MAX, [self.default_retry_delay]),
            "errors": _rules(self.throws),
            "timeout": self.time_limit or conf.task_time_limit or NO_LIMIT_SECONDS,
            "priority": bus_priority(priority),
            "expires": self.expires,
        }
        if rate is not None:
            options["rate"] = rate if isinstance(rate, str) and "/" in rate else f"{rate}/s"
        return options

    def _run(self, context: SyncHandlerContext, arguments: dict[str, Any]) -> Any:
        command = running.get()
        assert command is not None, "a worker has set the command that runs"
        request = request_of(command, context, self, arguments)
        called_with = (request.id, request.args, request.kwargs)
        tokens = current_request.set(request), _context.set(context)
        try:
            value = self._judged(arguments, called_with, command)
            if value is _IGNORED:
                return None
            self._follow(command, value)
        finally:
            current_request.reset(tokens[0])
            _context.reset(tokens[1])
        self._hook(self.on_success, value, *called_with)
        self._hook(self.after_return, SUCCESS, value, *called_with, None)
        ignored = self.app.conf.task_ignore_result if self.ignore_result is None else self.ignore_result
        return None if ignored else value

    def _judged(
        self, arguments: dict[str, Any], called_with: tuple[Any, Any, Any], command: Command[Any]
    ) -> Any:
        """The result of the function; an exception says whether the bus is to retry or to park."""
        try:
            self.before_start(*called_with)
            return self._attempt((), arguments)
        except (Snooze, CommandCanceled, RetryAfter):
            raise
        except Ignore:
            if self.request.reported == FAILURE:  # the task has said itself how it ended
                raise BusinessRuleException("FAILURE", "The task set its state to FAILURE.") from None
            return _IGNORED
        except Reject as rejected:
            if rejected.requeue:
                raise Snooze(0, "requeued by the task") from None
            raise
        except Retry as retry:
            cause = retry.exc or retry
            self._hook(self.on_retry, cause, *called_with, ExceptionInfo(cause))
            raise RetryAfter(retry.seconds, type(cause).__name__, str(cause)) from retry.exc
        except Exception as error:  # the task's own; the rules of the handler judge it
            info = ExceptionInfo(error)
            self._hook(self.on_failure, error, *called_with, info)
            self._hook(self.after_return, FAILURE, error, *called_with, info)
            self._hook(canvas.call_errbacks, self.app, command, self.request, error, info)
            raise

    def _hook(self, hook: Callable[..., Any], *args: Any) -> None:
        """Call a hook. What it raises does not change how the task ended, as with Celery."""
        try:
            hook(*args)
        except (HandlerError, Snooze, CommandCanceled):
            raise  # it is meant for the worker
        except Exception:  # code of the program, in place of whose error nothing may be lost
            _log.exception("%s of task %s failed", getattr(hook, "__name__", hook), self.name)

    def _attempt(self, args: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
        limit = self.soft_time_limit or self.app.conf.task_soft_time_limit
        retried: tuple[type[BaseException], ...] = (*self.autoretry_for, TransientCommandError)
        others: tuple[type[BaseException], ...] = (Retry, Ignore, Reject, RetryAfter)
        try:
            with SoftLimit(limit):
                return self(*args, **arguments)
        except (*others, *self.dont_autoretry_for):
            raise
        except retried as error:
            self._autoretry(error)

    def _autoretry(self, error: BaseException) -> NoReturn:
        options = dict(self.retry_kwargs)
        if self.retry_backoff:
            factor = int(max(1.0, float(self.retry_backoff)))
            seconds = min(self.retry_backoff_max, factor * 2**self.request.retries)
            options["countdown"] = random.uniform(0, seconds) if self.retry_jitter else seconds
        raise self.retry(exc=error, **options)

    def _follow(self, command: Command[Any], value: Any) -> None:
        if "then" in command.headers.get(HEADER, ()):
            text = self.app.contract(self, command.domain).encode_result(value)
            canvas.follow(self.app, command, None if text is None else payload.decode(text))


def _itself(error: BaseException) -> BaseException:
    return error


def _final(error: TransientCommandError) -> BaseException:
    """What a task retries has become RetryAfter before; the rest is over, such as a time limit."""
    if isinstance(error, RetryAfter):
        return error
    over = error.code in ("HANDLER_TIMEOUT", "THREAD_TIMEOUT")
    return PermanentCommandError("TimeLimitExceeded" if over else error.code, error.message)


def _rules(throws: Iterable[type[BaseException]]) -> dict[type[BaseException], Any]:
    """What exceptions of a task mean. Celery retries nothing by itself: a failure is final, and here
    an operator may retry it; what the task `throws` is expected, and not for an operator."""
    return {
        BaseException: PermanentCommandError,
        HandlerError: _itself,
        TransientCommandError: _final,
        Snooze: _itself,
        CommandCanceled: _itself,
        **dict.fromkeys(throws, BusinessRuleException),
    }
