"""`chain`, `group` and `chord`: what runs after what, carried by the commands themselves.

A workflow is a plan: a list of steps, each a task or a group of plans. A task whose plan goes on
carries the rest in a header; when it has succeeded, it sends the next step before its own outcome is
recorded. A group is a batch; where something follows, the completion of the batch is the command JOIN,
which sends the next step with all results. The id of a step is derived from that of the step before
and from a seed that only the workflow carries: so a task that runs again sends nothing twice, the
result of the last step has its id from the beginning, and no other sender can take that id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from uuid import UUID, uuid4, uuid5

import msgspec

from commandbus.domain.command import Command, SendRequest
from commandbus.domain.ids import as_id, new_id
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import DuplicateCommandError, InvalidOperationError, PermanentCommandError
from commandbus.integrations.celery.current import get_current_app
from commandbus.integrations.celery.exceptions import ExceptionInfo
from commandbus.integrations.celery.lacking import SIGNATURES, lack
from commandbus.integrations.celery.places import refused
from commandbus.integrations.celery.request import HEADER, Request
from commandbus.integrations.celery.result import AsyncResult, GroupResult

if TYPE_CHECKING:
    from commandbus.integrations.celery.app import Celery
    from commandbus.integrations.celery.task import Task

R = TypeVar("R")
Step = dict[str, Any]
Plan = list[Step]
"""Steps as plain values: {"task", "args", "kwargs", "options", "immutable"} or {"group": [plan, …]}. A
task may have "errors", which are steps to call after its failure."""

JOIN = "celery.join"


class Joined(msgspec.Struct, frozen=True):
    """The payload of JOIN."""

    seed: UUID
    first: UUID
    """The id of the batch."""
    lengths: list[int]
    """How many tasks follow each other in each member of the group."""
    then: list[Any]
    """The rest of the plan."""


class Signature(Generic[R]):
    """A call of a task that is not made yet."""

    def __init__(
        self,
        task: Task[..., R],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        immutable: bool = False,
    ) -> None:
        self.task = task
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.options = dict(options or {})
        self.immutable = immutable
        self.errbacks: list[Signature[Any]] = []

    def __repr__(self) -> str:
        return f"{self.task.name}{self.args!r}"

    if not TYPE_CHECKING:  # a type checker knows which names there are

        def __getattr__(self, name: str) -> Any:
            return lack("Signature", name, SIGNATURES)

    def __call__(self, *partial: Any, **kwargs: Any) -> R:
        """Run the task here."""
        return self.task(*partial, *self.args, **{**self.kwargs, **kwargs})

    def clone(self, args: Iterable[Any] = (), kwargs: dict[str, Any] | None = None) -> Signature[R]:
        """A copy with further arguments; positional ones come first."""
        merged = {**self.kwargs, **(kwargs or {})}
        made = Signature(self.task, (*args, *self.args), merged, self.options, self.immutable)
        made.errbacks = list(self.errbacks)
        return made

    def set(self, immutable: bool | None = None, **options: Any) -> Signature[R]:
        """Set options of `apply_async`, such as countdown and queue."""
        self.options.update(options)
        self.immutable = self.immutable if immutable is None else immutable
        return self

    def delay(self, *partial: Any, **kwargs: Any) -> AsyncResult[R]:
        return self.apply_async(partial, kwargs)

    def apply_async(
        self,
        args: Iterable[Any] | None = (),
        kwargs: dict[str, Any] | None = None,
        link_error: Any = (),
        **options: Any,
    ) -> AsyncResult[R]:
        """Send the task with its arguments, and those that are given."""
        if self.immutable:
            args, kwargs = (), {}
        full = self.clone(args or (), kwargs)
        errbacks = [*self.errbacks, *_signatures(link_error)]
        sent = {**self.options, **options}
        return self.task.apply_async(full.args, full.kwargs, link_error=errbacks, **sent)

    def on_error(self, errback: Any) -> Signature[R]:
        """Call a task when this one has failed: with (request, exc, traceback) where it takes more than
        one argument, and at once; else it is sent with the id of the failed task."""
        self.errbacks += _signatures(errback)
        return self

    def link_error(self, errback: Any) -> Any:
        """As `on_error`; returns the errback."""
        self.on_error(errback)
        return errback

    def __or__(self, other: Any) -> chain:
        return chain(self, other)

    def plan(self) -> Plan:
        step: Step = {"task": self.task.name, "args": list(self.args), "kwargs": self.kwargs}
        step |= {"options": self.options, "immutable": self.immutable}
        if self.errbacks:
            step["errors"] = _plans(self.errbacks)
        return [step]


class _Canvas(ABC):
    """What a chain, a group and a chord have in common."""

    app: Any
    _errors: tuple[Step, ...] = ()

    @abstractmethod
    def _steps(self) -> Plan: ...

    def plan(self) -> Plan:
        return [_with_errors(step, self._errors) for step in self._steps()]

    def __or__(self, other: Any) -> chain:
        return chain(self, other)

    def on_error(self, errback: Any) -> Self:
        """Call a task when one of these has failed; see `Signature.on_error`."""
        self._errors = (*self._errors, *_plans(errback))
        return self

    def link_error(self, errback: Any) -> Any:
        """As `on_error`; returns the errback."""
        self.on_error(errback)
        return errback

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        link_error: Any = (),
        **options: Any,
    ) -> Any:
        """Send the first step; returns the result of the last. The options are those of the first task,
        of the body of a chord, or of all tasks of a group, as with Celery."""
        if "task_id" in options:
            raise refused("a task_id for a chain, group or chord", "Keep the id of its result.")
        plan = [_with_errors(step, _plans(link_error)) for step in self.plan()]
        if kwargs:
            plan = _changed(plan, lambda step: {"kwargs": {**step["kwargs"], **kwargs}})
        number = 1 if len(plan) > 1 and "group" in plan[0] else 0
        rest = _changed(plan[number:], lambda step: {"options": {**step["options"], **options}})
        return begin(self.app, [*plan[:number], *rest], tuple(args or ()))

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        return self.apply_async(args, kwargs)

    __call__ = delay


def _changed(plan: Plan, change: Callable[[Step], Step]) -> Plan:
    """The plan with other values in its first task, or the first of each member of its group."""
    step = plan[0]
    if "group" in step:
        return [{"group": [_changed(member, change) for member in step["group"]]}, *plan[1:]]
    return [{**step, **change(step)}, *plan[1:]]


def _with_errors(step: Step, errors: Sequence[Step]) -> Step:
    if not errors:
        return step
    if "group" in step:
        return {"group": [[_with_errors(one, errors) for one in member] for member in step["group"]]}
    return {**step, "errors": [*step.get("errors", ()), *errors]}


def _plans(errbacks: Any) -> Plan:
    return [one for errback in _signatures(errbacks) for one in errback.plan()]


def _signatures(given: Any) -> list[Signature[Any]]:
    """One signature, or several, as a list. Raises NotPortable for anything else."""
    found = list(given) if isinstance(given, list | tuple) else [given]
    for one in found:
        if not isinstance(one, Signature):
            raise refused(f"the errback {one!r}", "Give a signature of a task, such as task.s().")
    return found


class chain(_Canvas):  # noqa: N801 - Celery's name
    """Tasks one after another, each with the result of the one before as its first argument."""

    def __init__(self, *steps: Any) -> None:
        given = _listed(steps)
        if not given:
            raise refused("a chain without tasks", "Give it at least one.")
        self.app: Celery = _app_of(given)
        self._plan: Plan = [step for one in given for step in one.plan()]

    def _steps(self) -> Plan:
        return self._plan


class group(_Canvas):  # noqa: N801 - Celery's name
    """Tasks that run at the same time. The members of a group inside it are its own."""

    def __init__(self, *members: Any) -> None:
        self._members = _listed(members)

    @property
    def app(self) -> Celery:
        return _app_of(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def _steps(self) -> Plan:
        plans = [member.plan() for member in self._members]
        flat = [plan[0]["group"] if len(plan) == 1 and "group" in plan[0] else [plan] for plan in plans]
        return [{"group": [plan for several in flat for plan in several]}]

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        link_error: Any = (),
        **options: Any,
    ) -> GroupResult:
        """Send all of them, or none; returns their results."""
        if not self._members:
            return GroupResult(new_id(), [])
        found: GroupResult = super().apply_async(args, kwargs, link_error, **options)
        return found


class chord(chain):  # noqa: N801 - Celery's name
    """A group, and a body that gets the list of its results. `chord(header)(body)` sends it."""

    def __init__(self, header: Any, body: Any = None) -> None:
        self._header = header if isinstance(header, group) else group(header)
        if body is not None:
            super().__init__(self._header, body)

    def __call__(self, body: Any = None, **options: Any) -> Any:
        """Send it; returns the result of the body."""
        whole = self if body is None else chain(self._header, body)
        return whole.apply_async(**options)


def _listed(given: Sequence[Any]) -> list[Any]:
    """The members of a canvas: as arguments, or as one list or iterator."""
    if len(given) == 1 and not hasattr(given[0], "plan"):
        given = list(given[0])
    for one in given:
        if not hasattr(one, "plan"):
            raise refused(f"{one!r} in a chain, group or chord", "Give signatures, such as task.s(1).")
    return list(given)


def _app_of(members: Sequence[Any]) -> Celery:
    for one in members:
        app: Celery | None = one.task.app if isinstance(one, Signature) else getattr(one, "app", None)
        if app is not None:
            return app
    return get_current_app()


def following(seed: UUID, first: UUID) -> UUID:
    """The id of the step after this one."""
    return uuid5(seed, f"{first} next")


def member_id(seed: UUID, group_id: UUID, number: int) -> UUID:
    """The id of the first task of a member of a group."""
    return uuid5(seed, f"{group_id} {number}")


def begin(app: Celery, plan: Plan, args: tuple[Any, ...] = ()) -> Any:
    """Send the first step of a plan; returns the result of its last one."""
    _check(app, plan, len(args))
    given = plan[0].get("options", {}).get("task_id")
    first = new_id() if given is None else as_id(given, "task_id")
    seed = uuid4()
    start(app, plan, seed, first, args, typed=True)
    return result_of(app, plan, seed, first)


def result_of(app: Celery, plan: Plan, seed: UUID, first: UUID, parent: Any = None) -> Any:
    """The result of the last step, which knows those that it follows."""
    for step in plan:
        if "group" in step:
            members = [
                result_of(app, member, seed, member_id(seed, first, number), parent)
                for number, member in enumerate(step["group"])
            ]
            parent = GroupResult(first, members, parent)
        else:
            parent = AsyncResult(first, app, parent)
        first = following(seed, first)
    return parent


def _check(app: Celery, plan: Plan, given: int) -> None:
    """Refuse what cannot be carried out before anything of it is sent. `given` arguments go before
    those of the first step, and one result before those of the others."""
    for number, step in enumerate(plan):
        if "group" not in step:
            app.check_call(step, extra=given if number == 0 else 1)
            if number and "task_id" in step["options"]:
                raise refused("a task_id inside a chain", "Keep the id of its result.")
            continue
        inner = [one for member in step["group"] for one in member]
        if any("group" in one for one in inner):
            raise refused(
                "a group or chord inside a group",
                "Flatten it, or let a task of the outer group send the inner one.",
            )
        for member in step["group"]:
            for position, one in enumerate(member):
                app.check_call(one, extra=given if number == position == 0 else 1)


def start(
    app: Celery,
    plan: Plan,
    seed: UUID,
    first: UUID,
    args: tuple[Any, ...],
    batch: str | None = None,
    typed: bool = False,
) -> None:
    """Send the first step of a plan under the id `first`, with `args` before its own arguments.
    Raises DuplicateCommandError for an id that is taken."""
    step, rest = plan[0], plan[1:]
    if "group" in step:
        _start_group(app, step["group"], rest, seed, first, args, typed)
    else:
        app.bus.send(_request(app, step, rest, seed, first, args, batch, typed))


def _start_group(
    app: Celery,
    members: list[Plan],
    rest: Plan,
    seed: UUID,
    first: UUID,
    args: tuple[Any, ...],
    typed: bool,
) -> None:
    if not members:  # Celery calls the body of an empty chord
        start(app, rest, seed, following(seed, first), ([],))
        return
    batch = str(first)
    requests = [
        _request(app, member[0], member[1:], seed, member_id(seed, first, number), args, batch, typed)
        for number, member in enumerate(members)
    ]
    lengths = [len(member) for member in members]
    data = Joined(seed, first, lengths, _plain(rest))
    on_complete = SendRequest(requests[0].domain, JOIN, data) if rest else None
    try:
        app.bus.create_batch(requests, batch_id=first, name="celery", on_complete=on_complete)
    except InvalidOperationError:
        if app.bus.get_batch(first) is None:  # else the task before ran again, and had sent it
            raise


def _request(
    app: Celery,
    step: Step,
    rest: Plan,
    seed: UUID,
    command_id: UUID,
    args: tuple[Any, ...],
    batch: str | None,
    typed: bool,
) -> SendRequest[Any]:
    if step["immutable"]:
        args = ()
    own = (*args, *step["args"])
    request = app.request_of(step["task"], own, step["kwargs"], step["options"], typed=typed)
    headers = dict(request.headers or {})
    carried: dict[str, Any] = {"then": _plain(rest), "seed": str(seed)} if rest else {}
    if rest and batch is not None:
        carried["batch"] = batch
    if "errors" in step:
        carried["errors"] = _plain(step["errors"])
    task = app.find_task(step["task"])
    if own and task is not None and task.sees_its_call:
        carried["args"] = len(own)
    if carried:
        headers[HEADER] = carried
    return request.options(command_id=command_id, headers=headers or None, batch_id=batch)


def _plain(plan: Plan) -> Any:
    """A plan as JSON values; what a task declares as a Decimal or a date is text here."""
    return msgspec.to_builtins(plan)


def follow(app: Celery, command: Command[Any], result: Any) -> None:
    """Send what follows a task that has succeeded; `result` is plain JSON."""
    carried = command.headers.get(HEADER, {})
    if "then" in carried:
        seed = UUID(carried["seed"])
        first = following(seed, command.command_id)
        with suppress(DuplicateCommandError):  # this task ran before, and has sent it
            start(app, carried["then"], seed, first, (result,), carried.get("batch"))


def call_errbacks(
    app: Celery, command: Command[Any], request: Request, error: BaseException, info: ExceptionInfo
) -> None:
    """Call the tasks that a failed task names for its failure, as Celery does: at once with (request,
    exc, traceback) where they take more than one argument; else they are sent with its id."""
    for step in command.headers.get(HEADER, {}).get("errors", ()):
        task = app.find_task(step["task"])
        if task is not None and len(task.signature_of_function.parameters) > 1:
            task(request, error, info.traceback, *step["args"], **step["kwargs"])
            continue
        start(app, [step], uuid4(), new_id(), (request.id,))


def join(app: Celery, records: Sequence[Any], data: Joined) -> None:
    """Send what follows a group, with the results of all its tasks."""
    by_id = {record.command_id: record for record in records}
    results = []
    for number, length in enumerate(data.lengths):
        last = member_id(data.seed, data.first, number)
        for _ in range(length - 1):
            last = following(data.seed, last)
        record = by_id.get(last)
        if record is None or record.status is not CommandStatus.COMPLETED:
            raise PermanentCommandError(
                "ChordError",
                f"Task {last} of the group has not succeeded, so its body is not sent. Retry or "
                "complete that task, then retry this command.",
            )
        results.append(record.result)
    with suppress(DuplicateCommandError):  # this command ran before, and has sent it
        start(app, data.then, data.seed, following(data.seed, data.first), (results,))
