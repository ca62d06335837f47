"""A crash at a chosen point of a handler, so that a test can try them all.

Points are: each return from an `await` and each suspension of an `async def` handler, and of your
coroutines that it awaits; each line of a `def` handler and of your functions that it calls; each time
that its context asks the store, such as between the call of a step and its record; and the end, when
everything is done and nothing is recorded yet.

A crash is an exception that is no Exception, raised at the point: what a handler does in `finally`
runs, which a killed process would not do. Nothing is recorded about the run, and its lease runs out.
"""

from __future__ import annotations

import dis
import inspect
import sys
import sysconfig
from collections.abc import Callable, Coroutine, Generator
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from types import CodeType, FrameType, coroutine
from typing import Any

import commandbus
from commandbus.store.op import Op
from commandbus.worker.context import HandlerServices
from commandbus.worker.handlers import Handler

_FOREIGN = tuple(
    {str(Path(path).resolve()) for path in sysconfig.get_paths().values()}
    | {str(Path(commandbus.__file__).resolve().parent)}
)


class Crash(BaseException):
    """Ends a handler as the end of its process would: nothing of the run is recorded."""


class CrashPlan:
    """Counts points, and crashes at the one that was chosen."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.where: str | None = None
        """The place of the crash, once it has happened."""
        self._passed = 0

    @property
    def fired(self) -> bool:
        return self.where is not None

    def point(self, where: str) -> None:
        """Raises Crash when this is the one; before and afterwards, nothing."""
        self._passed += 1
        if self._passed == self.number:
            self.where = where
            raise Crash(f"crash {self.number}: {where}")

    def wrap(self, handler: Handler) -> Handler:
        """The handler with its points."""
        function = _awaiting(handler, self) if handler.is_async else _blocking(handler, self)
        return replace(handler, function=function)

    def ended(self, name: str) -> None:
        """The last point; a crash that a handler has swallowed happened all the same."""
        if self.fired:
            raise Crash(f"crash {self.number}: {self.where}")
        self.point(f"the end of {name}, before its outcome is recorded")


def _blocking(handler: Handler, plan: CrashPlan) -> Callable[..., Any]:
    @wraps(handler.function)
    def run(command: Any, context: Any) -> Any:
        context._services = _watched(context._services, _Session(context._services.session, plan))
        tracer = _Tracer(plan, awaits=False)
        former = sys.gettrace()
        sys.settrace(tracer)
        try:
            result = handler.function(command, context)
        finally:
            sys.settrace(former)
        plan.ended(handler.command_type)
        return result

    return run


def _awaiting(handler: Handler, plan: CrashPlan) -> Callable[..., Any]:
    @wraps(handler.function)
    async def run(command: Any, context: Any) -> Any:
        context._services = _watched(context._services, _AsyncSession(context._services.session, plan))
        result = await _stepped(handler.function(command, context), _Tracer(plan, awaits=True))
        plan.ended(handler.command_type)
        return result

    return run


@coroutine
def _stepped(work: Coroutine[Any, Any, Any], tracer: _Tracer) -> Generator[Any, Any, Any]:
    """Drive a coroutine, traced while it is at work and not while it waits."""

    def step(function: Callable[..., Any], argument: Any) -> Any:
        former = sys.gettrace()
        # Python 3.12 looks for frames that want instructions when the tracer is set, and not later.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(tracer)
        try:
            return function(argument)
        finally:
            sys.settrace(former)

    try:
        waited_for = step(work.send, None)
        while True:
            try:
                tracer.plan.point(f"suspended in {_line_of(work)}")
                answer = yield waited_for
            except BaseException as error:  # a crash, a cancellation, the failure of what it waits for
                waited_for = step(work.throw, error)
            else:
                waited_for = step(work.send, answer)
    except StopIteration as done:
        return done.value
    finally:
        work.close()


class _Tracer:
    """Sees the points in code that is neither the interpreter's nor a package's."""

    def __init__(self, plan: CrashPlan, *, awaits: bool) -> None:
        self.plan = plan
        self._awaits = awaits
        self._inside: dict[FrameType, range] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if not _is_yours(frame.f_code.co_filename):
            return None
        if not self._awaits:
            return self._at_line
        if not frame.f_code.co_flags & inspect.CO_COROUTINE:
            return None
        frame.f_trace = self._at_instruction  # Python 3.13 asks for it when the next line is executed
        frame.f_trace_opcodes = True
        return self._at_instruction

    def _at_line(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "line":
            self.plan.point(f"before {_place(frame.f_code, frame.f_lineno)}")
        return self._at_line

    def _at_instruction(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "opcode":
            before = self._inside.pop(frame, None)
            now = next((one for one in _awaits_in(frame.f_code) if frame.f_lasti in one), None)
            if now is not None:
                self._inside[frame] = now
            if before is not None and now is not before:
                self.plan.point(f"after the await in {_place(frame.f_code, frame.f_lineno)}")
        return self._at_instruction


class _Session:
    """Asks the store, unless it crashes before."""

    def __init__(self, session: Any, plan: CrashPlan) -> None:
        self._session, self._plan = session, plan

    def run(self, op: Op[Any], *, read: bool = False) -> Any:
        self._at(op)
        return self._session.run(op, read=read)

    def _at(self, op: Op[Any]) -> None:
        try:
            name = getattr(op, "__name__", "op").strip("_")
            self._plan.point(f"before context.{name}")
        except Crash:
            op.close()
            raise


class _AsyncSession(_Session):
    async def run(self, op: Op[Any], *, read: bool = False) -> Any:
        self._at(op)
        return await self._session.run(op, read=read)


def _watched(services: HandlerServices, session: _Session) -> HandlerServices:
    bus = type(services.bus)(services.bus.scope, session, services.bus.hub)
    return HandlerServices(
        services.store,
        session,
        services.worker,
        services.requests,
        bus,
        services.within,
        services.holds,
        services.provided,
        services.outcome_of,
    )


@cache
def _awaits_in(code: CodeType) -> list[range]:
    """Where the instructions of each `await` are: from its first look to what follows it."""
    return [
        range(instruction.offset, instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opname == "SEND"
    ]


@cache
def _is_yours(filename: str) -> bool:
    return not filename.startswith("<") and not str(Path(filename).resolve()).startswith(_FOREIGN)


def _line_of(work: Coroutine[Any, Any, Any]) -> str:
    frame = getattr(work, "cr_frame", None)
    return _place(frame.f_code, frame.f_lineno) if frame is not None else repr(work)


def _place(code: CodeType, line: int | None) -> str:
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{line})"
