"""`Celery`: the app object. It collects tasks, and makes of them the registry that workers run."""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from commandbus.domain.command import CommandRecord, SendRequest
from commandbus.domain.contract import CommandType
from commandbus.domain.schedule import Schedule
from commandbus.errors import CommandBusError, ConfigurationError
from commandbus.integrations.celery import canvas
from commandbus.integrations.celery.conf import Conf
from commandbus.integrations.celery.current import get_current_app, set_current_app
from commandbus.integrations.celery.options import TaskOptions, send_options
from commandbus.integrations.celery.places import caller, refused
from commandbus.integrations.celery.result import AsyncResult
from commandbus.integrations.celery.schedules import when
from commandbus.integrations.celery.surroundings import (
    Control,
    Receivers,
    import_if_there,
    imported,
    installed_apps,
)
from commandbus.integrations.celery.task import Task
from commandbus.runtimes.threads.bus import SyncCommandBus
from commandbus.worker.context import SyncHandlerContext
from commandbus.worker.handlers import HandlerRegistry
from commandbus.worker.lifespan import L, Lifespan, check_lifespan
from commandbus.worker.middleware import Middleware

P = ParamSpec("P")
R = TypeVar("R")
Layer = TypeVar("Layer", bound=Middleware)

_shared: list[Task[..., Any]] = []


class Celery:
    """An app: `@app.task`, `app.conf`, beat entries. `app.registry` is for workers and `drain`
    (`commandbus worker shop.celery:app.registry`), `app.bus` sends. The store is `broker`, a URL of
    Command Bus, else COMMANDBUS_URL. Raises NotPortable for arguments without an equivalent."""

    def __init__(
        self,
        main: str | None = None,
        *,
        broker: str | None = None,
        include: Iterable[str] = (),
        set_as_current: bool = True,
        task_cls: type[Task[..., Any]] | str | None = None,
        **settings: Any,
    ) -> None:
        self.main = main
        self.conf = Conf()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._queues: dict[str, HandlerRegistry] = {}
        self._contracts: dict[tuple[str, str], CommandType[..., Any]] = {}
        self._buses: dict[int, SyncCommandBus] = {}
        self._given: SyncCommandBus | None = None
        self._waiting: list[Callable[[], None]] = []
        self._layers: list[Middleware] = []
        self._lifespans: list[Lifespan] = []
        self._lock = threading.RLock()
        self.on_after_configure = self.on_after_finalize = Receivers(self)
        self.control = Control(self)
        self.Task: type[Task[..., Any]] = _task_class(task_cls or Task)
        if "backend" in settings:
            settings["result_backend"] = settings.pop("backend")
        self.conf.update({"broker_url": broker, "include": tuple(include)}, **settings)
        if set_as_current:
            set_current_app(self)

    def __repr__(self) -> str:
        return f"<Celery {self.main} on Command Bus>"

    def set_current(self) -> None:
        """Make this the app of shared tasks and of `current_app`."""
        set_current_app(self)

    set_default = set_current

    # Configuration

    def config_from_object(self, obj: Any, silent: bool = False, namespace: str | None = None) -> None:
        """Read settings from an object, or from `module` or `module:attribute`, when they are needed
        first; with a namespace those that begin with it, as CELERY_TIMEZONE."""
        place = caller()

        def read() -> None:
            self.conf.read(imported(obj) if isinstance(obj, str) else obj, namespace, place)

        self._waiting.append(read)

    def autodiscover_tasks(
        self,
        packages: Iterable[str] | Callable[[], Iterable[str]] | None = None,
        related_name: str = "tasks",
        force: bool = False,
    ) -> None:
        """Import the module `tasks` of these packages, or of all installed apps of Django, when the
        tasks are needed first, or at once with `force`."""

        def discover() -> None:
            names = packages() if callable(packages) else packages
            for name in installed_apps() if names is None else names:
                import_if_there(f"{name}.{related_name}")

        if force:
            discover()
        else:
            self._waiting.append(discover)

    def add_periodic_task(
        self,
        schedule: Any,
        sig: canvas.Signature[Any],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        """A beat entry. `options` are those of `apply_async` that each of its tasks can have."""
        called = sig.clone(args, kwargs)
        if called.errbacks:
            raise refused("link_error of a beat entry", "Let its task send the one that may fail.")
        entry = {
            "task": called.task.name,
            "schedule": schedule,
            "args": called.args,
            "kwargs": called.kwargs,
            "options": {**called.options, **options},
        }
        known = {**self.conf.beat_schedule, name or f"{called.task.name}:{schedule}": entry}
        self.conf.set("beat_schedule", known, caller())

    # Tasks

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, /, *, bind: Literal[True], **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...
    @overload
    def task(
        self, /, *, bind: Literal[False] = False, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, function: Any = None, /, *, bind: bool = False, **options: Any) -> Any:
        """Make a task of the function below. Raises NotPortable, with file and line, for options and
        signatures that have no equivalent, ConfigurationError for a second task of one name."""
        place = caller()

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            made = make_task(function, lambda: self, bind, options, place, self.main)
            return self._add(made)

        return make if function is None else make(function)

    def register_task(self, task: Task[..., Any] | type[Task[..., Any]]) -> Task[..., Any]:
        """Add a task that is a class with the method `run`; raises as `task` does."""
        made, place = task() if isinstance(task, type) else task, caller()
        kind = type(made)
        if kind.run is Task.run:
            raise refused(f"the task {kind.__name__}", "Give it a method run().")
        name = made.name or f"{kind.__module__}.{kind.__name__}"
        made.become(kind.run, name, lambda: self, True, {}, place)
        made.has_base = True
        made.check()
        return self._add(made)

    def _add(self, task: Task[..., Any]) -> Task[..., Any]:
        first = self._tasks.setdefault(task.name, task)
        if first is not task:
            raise ConfigurationError(
                f"{task.place}: the task {task.name!r} exists already, at {first.place}; give one of "
                "them another name=."
            )
        return task

    @property
    def tasks(self) -> dict[str, Task[..., Any]]:
        """All tasks by name: those of the app, and the shared ones."""
        self._configure()
        return {**{task.name: task for task in _shared}, **self._tasks}

    def find_task(self, name: str) -> Task[..., Any] | None:
        return self._tasks.get(name) or next((one for one in _shared if one.name == name), None)

    def _task(self, name: str) -> Task[..., Any]:
        found = self.find_task(name) or self.tasks.get(name)
        if found is None:
            raise refused(
                f"the task name {name!r}",
                "Import the module of the task. For a task of another program use "
                "bus.send(queue, name, {…}), with its arguments by name.",
            )
        return found

    def send_task(
        self, name: str, args: Iterable[Any] = (), kwargs: Any = None, **options: Any
    ) -> AsyncResult[Any]:
        """Send a task by its name. Raises NotPortable for one that this program does not have."""
        return self._task(name).apply_async(args, kwargs, **options)

    def signature(self, name: str, *args: Any, **options: Any) -> canvas.Signature[Any]:
        """The signature of a task by its name."""
        return self._task(name).signature(*args, **options)

    def AsyncResult(self, task_id: str) -> AsyncResult[Any]:  # noqa: N802 - Celery's name
        return AsyncResult(task_id, self)

    # Onto the bus

    @property
    def bus(self) -> SyncCommandBus:
        """The bus that tasks are sent with. It is opened when it is needed first, once in each
        process; assign an open one to use that instead, such as one of a test."""
        if self._given is not None:
            return self._given
        self._configure()
        with self._lock:
            found = self._buses.get(os.getpid())
            if found is None:
                found = self._buses[os.getpid()] = SyncCommandBus(self.conf.broker_url).open()
                atexit.register(self.close)
            return found

    @bus.setter
    def bus(self, bus: SyncCommandBus | None) -> None:
        if bus is not None and not isinstance(bus, SyncCommandBus):
            raise ConfigurationError(f"app.bus must be a SyncCommandBus, not {bus!r}.")
        self._given = bus

    def close(self) -> None:
        """Close the bus that the app has opened."""
        with self._lock:
            if (opened := self._buses.pop(os.getpid(), None)) is not None:
                opened.close()

    @property
    def registry(self) -> HandlerRegistry:
        """The handlers of all tasks in all queues, and the beat entries as schedules."""
        with self._lock:
            queues = self._declared_queues()
            for task in self.tasks.values():
                for queue in queues:
                    self.contract(task, queue)
            self._declare_beat()
            self._queue(queues[0]).lifespans = tuple(self._lifespans)
            return HandlerRegistry.union(list(self._queues.values()))

    def middleware(self, function: Layer) -> Layer:
        """Put a generator with one yield around every task; see `HandlerRegistry.middleware`."""
        for registry in self._queues.values():
            registry.middleware(function)
        self._layers.append(function)
        return function

    def lifespan(self, function: L) -> L:
        """Run a generator with one yield around the work of each worker; see
        `HandlerRegistry.lifespan`."""
        self._lifespans.append(check_lifespan(function))
        return function

    def contract(self, task: Task[..., Any], queue: str) -> CommandType[..., Any]:
        """The typed command of a task in a queue."""
        found = self._contracts.get((task.name, queue))
        if found is not None:
            return found
        with self._lock:
            if (task.name, queue) in self._contracts:  # another thread was first
                return self._contracts[task.name, queue]
            registry = self._queue(queue)
            if not task.has_base and type(task) is not self.Task:
                task.__class__ = self.Task  # it may be set after the tasks, as by factories of Flask
            try:
                made: CommandType[..., Any] = registry.command(
                    task.name, **task.handler_options(self.conf)
                )(task.handler())
            except CommandBusError as error:
                raise ConfigurationError(f"{task.place}: {error}") from None
            self._contracts[task.name, queue] = made
            return made

    def _queue(self, queue: str) -> HandlerRegistry:
        registry = self._queues.get(queue)
        if registry is None:
            registry = self._queues[queue] = HandlerRegistry(queue)
            for layer in self._layers:
                registry.middleware(layer)

            @registry.command(canvas.JOIN)
            def join(context: SyncHandlerContext, data: canvas.Joined) -> None:
                canvas.join(self, context.batch_results(), data)

        return registry

    def _declared_queues(self) -> list[str]:
        conf = self.conf
        self._configure()
        named = [str(getattr(queue, "name", queue)) for queue in conf.task_queues]
        routed = [self.queue_of(name, {}) for name in self.tasks]
        found = [conf.task_default_queue, *named, *routed]
        place = conf.place("task_routes")
        found += [_queue_of_route(route, place) for route in conf.task_routes.values()]
        beat = [entry.get("options", {}).get("queue") for entry in conf.beat_schedule.values()]
        return list(dict.fromkeys(queue for queue in (*found, *beat) if queue is not None))

    def queue_of(self, name: str, options: Mapping[str, Any]) -> str:
        """The queue of a call, which is its domain: that of the call, the task, a route, the app."""
        given = options.get("queue")
        if given is not None:
            queue = str(getattr(given, "name", given))
            if queue not in self._queues and queue not in self._declared_queues():
                raise refused(
                    f"the queue {queue!r} of task {name}",
                    f"No worker would serve it: add it to app.conf.task_queues = [{queue!r}, …].",
                )
            return queue
        task = self.find_task(name)
        if task is not None and task.queue is not None:
            return task.queue
        routes = self.conf.task_routes
        patterns = [name] if name in routes else routes  # the name itself goes before all patterns
        for pattern in patterns:
            if fnmatchcase(name, pattern):
                return _queue_of_route(routes[pattern], self.conf.place("task_routes"))
        return str(self.conf.task_default_queue)

    def request_of(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        typed: bool,
    ) -> SendRequest[Any]:
        """The request of a call; `typed` checks its values here instead of in the worker, which gets
        plain JSON values where another task has sent it."""
        task, queue = self._task(name), self.queue_of(name, options)
        contract, sent = self.contract(task, queue), send_options(options, self.conf.timezone)
        if typed:
            return contract(*args, **kwargs).options(**sent)
        arguments = task.signature_of_function.bind(*args, **kwargs).arguments
        data = next(iter(arguments.values())) if task.takes_model else arguments
        plain: SendRequest[Any] = SendRequest(queue, name, data)
        full = plain if contract.defaults is None else contract.defaults.apply(plain)
        return full.options(**sent)

    def check_call(self, step: canvas.Step, extra: int) -> None:
        """Raises TypeError where the arguments of a step, and the result before it, do not fit."""
        task = self._task(step["task"])
        before = (None,) * (0 if step["immutable"] else extra)
        try:
            task.signature_of_function.bind(*before, *step["args"], **step["kwargs"])
        except TypeError as error:
            raise TypeError(f"{task.name}() {error}") from None

    def decode_result(self, record: CommandRecord[Any]) -> Any:
        """The result of a task as its annotation has it."""
        task = self.find_task(record.command_type)
        if task is None or record.result is None:
            return record.result
        return self.contract(task, record.domain).result_of(record)

    def _configure(self) -> None:
        """Do once what was put off until tasks are needed."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one()
            modules, self.conf._values["include"] = (*self.conf.include, *self.conf.imports), ()
            self.conf._values["imports"] = ()
            for module in modules:
                import_module(module)

    def _declare_beat(self) -> None:
        for name, entry in self.conf.beat_schedule.items():
            place = self.conf.place("beat_schedule")
            options = dict(entry.get("options") or {})
            task, args = self._task(entry["task"]), tuple(entry.get("args", ()))
            registry = self._queue(self.queue_of(task.name, options))
            known = _schedule_name(name)
            if known in registry.schedules:
                continue
            try:
                request = self.request_of(task.name, args, entry.get("kwargs", {}), options, typed=True)
                zone, times = self.conf.timezone, when(entry["schedule"], place)
                made = Schedule(name=known, request=request, timezone=zone, **times).checked()
            except (CommandBusError, TypeError) as error:
                raise ConfigurationError(f"{place}: the beat entry {name!r}: {error}") from None
            registry.schedules[known] = made


def make_task(
    function: Callable[..., Any],
    app: Callable[[], Celery],
    bind: bool,
    options: Mapping[str, Any],
    place: str,
    main: str | None = None,
) -> Task[..., Any]:
    """A task of a function; its name is its module and its own name, unless given."""
    module = function.__module__
    if module == "__main__" and main:
        module = main
    base = _task_class(options.get("base") or Task, place)
    name = options.get("name") or f"{module}.{function.__name__}"
    made = base()
    made.become(function, name, app, bind, options, place)
    made.has_base = options.get("base") is not None
    made.check()
    return made


@overload
def shared_task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def shared_task(
    *, bind: Literal[True], **options: Unpack[TaskOptions]
) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...
@overload
def shared_task(
    *, bind: Literal[False] = False, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def shared_task(function: Any = None, /, *, bind: bool = False, **options: Any) -> Any:
    """A task of every app; it is sent with the app that was made last."""
    place = caller()

    def make(function: Callable[..., Any]) -> Task[..., Any]:
        made = make_task(function, get_current_app, bind, options, place)
        _shared[:] = [*(one for one in _shared if one.name != made.name), made]
        return made

    return make if function is None else make(function)


def _task_class(base: Any, place: str | None = None) -> type[Task[..., Any]]:
    """The class of tasks that a program names, or "module:name" of it."""
    found = imported(base) if isinstance(base, str) else base
    if isinstance(found, type) and issubclass(found, Task):
        return found
    raise refused(f"base={base!r}", f"Derive it from Task of {__name__.rpartition('.')[0]}.", place)


def _queue_of_route(route: Any, place: str) -> str:
    if isinstance(route, str):
        return route
    if isinstance(route, Mapping) and set(route) == {"queue"}:
        return str(route["queue"])
    raise refused(f"the route {route!r}", "Write {'module.task': {'queue': 'name'}}.", place)


def _schedule_name(entry: str) -> str:
    """Beat entries have any text as their name; a schedule has one that fits on a command line."""
    plain = re.sub(r"[^\w.:-]+", "-", entry, flags=re.ASCII)
    return (plain if plain[:1].isalpha() else f"_{plain}")[:63]
