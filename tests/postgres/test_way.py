"""How many functions a reader opens to follow a command from `send` to its recorded outcome.

One typed command is sent, and run by an idle worker of the same process; the functions of the package
that are entered meanwhile are noted. Counted are those that carry the command, whose files are named in
docs/follow-a-command.md. Not counted are

- helpers: up to 15 lines that call no other function counted here; properties, and dunder methods;
- what only watches, paces or remembers (BESIDE): a command ends the same without it;
- other threads, such as the renewal of leases, and the claim after the one that took the command.

The second exception depends on a list of files, so there is a bound with these, too.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import commandbus
from commandbus import CommandBus, HandlerRegistry, Worker
from tests.postgres.database import empty_url

pytestmark = pytest.mark.postgres

STEPS_MAX = 70
ALL_MAX = 90
"""With what is beside the way."""
HELPER_LINES = 15
SOURCE = Path(commandbus.__file__).parent
BESIDE = {
    *("engines/postgres/bounds.py", "engines/postgres/sleepers.py", "engines/postgres/watch.py"),
    *("store/outage.py", "store/rescuing.py", "store/sent.py", "store/suspects.py"),
    *("worker/chains.py", "worker/ending.py", "worker/health.py", "worker/held_leases.py"),
    *("worker/keeper.py", "worker/metrics.py", "worker/pace.py", "worker/prefetch.py"),
    *("worker/recorder.py", "worker/suspects.py", "worker/until_idle.py", "services/reclaimer.py"),
}
WORKER = {"runtimes/asyncio/worker.py", "worker/base.py", "worker/core.py"}
LOOP = {"run", "_work", "_set_timer", "deadline", "done", "_observe"}
"""Of the worker: its start, which goes on, its timer, and its health."""


class Trace:
    """The functions of the package that a thread enters, and which of them call which."""

    def __init__(self) -> None:
        self.calls: dict[CodeType, set[CodeType]] = {}
        self._claims: list[asyncio.Task[Any] | None] = []

    @contextmanager
    def on(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(SOURCE)):
            return
        task = asyncio.current_task()
        if code.co_qualname == "RuntimeWorker._answer_claim" and task not in self._claims:
            self._claims.append(task)
        if task in self._claims[1:]:
            return
        self.calls.setdefault(code, set())
        above = frame.f_back
        while above is not None and not above.f_code.co_filename.startswith(str(SOURCE)):
            above = above.f_back
        if above is not None:
            self.calls.setdefault(above.f_code, set()).add(code)

    def steps(self, *, beside: bool = False) -> list[CodeType]:
        counted = {c for c in self.calls if _is_function(c) and (beside or not _is_beside(c))}
        return [
            code
            for code in self.calls
            if code in counted and (self.calls[code] & counted or _lines(code) > HELPER_LINES)
        ]


@cache
def _functions(filename: str) -> dict[int, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those of a file that are neither properties nor dunder methods, by their first lines."""
    found = {}
    for node in ast.walk(ast.parse(Path(filename).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            decorators = node.decorator_list
            if not any(isinstance(one, ast.Name) and one.id == "property" for one in decorators):
                found[min([node.lineno, *(one.lineno for one in decorators)])] = node
    return found


def _is_function(code: CodeType) -> bool:
    return code.co_firstlineno in _functions(code.co_filename)


def _is_beside(code: CodeType) -> bool:
    path = Path(code.co_filename).relative_to(SOURCE).as_posix()
    return path in BESIDE or (path in WORKER and code.co_name in LOOP)


def _lines(code: CodeType) -> int:
    """Of the body, without its docstring."""
    body = _functions(code.co_filename)[code.co_firstlineno].body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


async def test_a_reader_follows_a_command_through_few_functions() -> None:
    orders, done = HandlerRegistry("orders"), asyncio.Event()

    @orders.command
    async def ship(amount: int) -> int:
        done.set()
        return amount

    trace = Trace()
    async with CommandBus(empty_url()) as bus:
        worker = Worker(bus, orders)
        running = asyncio.create_task(worker.run())
        for _ in range(3):  # statements are prepared, and connections are open
            await bus.wait(await bus.send(ship(amount=1)), timeout=30)
        while not worker._core.idle:
            await asyncio.sleep(0.01)
        done.clear()
        with trace.on():
            sent = await bus.send(ship(amount=2))
            await done.wait()
            while worker._core.held or worker._core.settling:
                await asyncio.sleep(0)
        record = await bus.get_command(sent)
        await worker.stop()
        await running
    assert record is not None
    assert record.result == 2
    names = [f"{Path(code.co_filename).name} {code.co_qualname}" for code in trace.steps()]
    assert 40 < len(names) <= STEPS_MAX, f"{len(names)} functions:\n" + "\n".join(names)
    assert len(trace.steps(beside=True)) <= ALL_MAX
