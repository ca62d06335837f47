"""Handlers for child processes: in a module of their own, which a child can import."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from commandbus.domain.command import Command
from commandbus.errors import (
    BusinessRuleException,
    HandlerTimeout,
    InvalidOperationError,
    LeaseLost,
    PermanentCommandError,
)
from commandbus.testing.waiting import eventually
from commandbus.worker.context import HandlerContext, SyncHandlerContext

logger = logging.getLogger("app.isolated")


class OutOfPaper(Exception):  # noqa: N818 - a fact
    def __init__(self, printer: str, sheets: int) -> None:
        super().__init__(f"{printer} has {sheets} sheets")
        self.printer = printer


def pid(command: Command[Any], context: SyncHandlerContext) -> int:
    return os.getpid()


def echo(command: Command[Any], context: SyncHandlerContext) -> Any:
    return {
        "data": command.data,
        "command_id": str(command.command_id),
        "correlation_id": str(command.correlation_id),
        "headers": command.headers,
        "tags": list(command.tags),
        "attempt": context.attempt,
        "max_attempts": context.max_attempts,
        "fence": context.fence,
        "worker": context.worker,
    }


async def cancel_itself(command: Command[Any], context: HandlerContext) -> str:
    if command.data:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
    await asyncio.sleep(0)
    return "went on"


async def echo_async(command: Command[Any], context: HandlerContext) -> Any:
    await asyncio.sleep(0)
    return {"data": command.data, "pid": os.getpid()}


def loop_in_c(command: Command[Any], context: SyncHandlerContext) -> None:
    """For ever, in one call of C code that looks for no signal."""
    if command.data != "short":
        sum(itertools.repeat(0))


def loop_in_python(command: Command[Any], context: SyncHandlerContext) -> None:
    while True:
        pass


def log_without_end(command: Command[Any], context: SyncHandlerContext) -> None:
    """The worker gets records faster than it can handle them."""
    while True:
        with suppress(HandlerTimeout):
            logger.warning("again")


def tidy_up(command: Command[str], context: SyncHandlerContext) -> str:
    try:
        time.sleep(60)
    except HandlerTimeout:
        Path(command.data).write_text("tidy")
        raise
    return "never"


def rescue_result(command: Command[Any], context: SyncHandlerContext) -> str:
    try:
        time.sleep(60)
    except HandlerTimeout as error:
        return f"partial after {error.seconds:.0f} s"
    return "never"


async def sleep_async(command: Command[Any], context: HandlerContext) -> None:
    await context.progress(10, "asleep")
    await asyncio.sleep(60)


def eat(command: Command[int], context: SyncHandlerContext) -> int:
    eaten = [bytearray(1024**2) for _ in range(command.data)]
    return len(eaten)


def segfault(command: Command[Any], context: SyncHandlerContext) -> None:
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
        ctypes.string_at(0)


def leave(command: Command[int], context: SyncHandlerContext) -> None:
    os._exit(command.data)


def fail(command: Command[str], context: SyncHandlerContext) -> None:
    match command.data:
        case "permanent":
            raise PermanentCommandError("BROKEN", "no such article", {"article": 7})
        case "business":
            raise BusinessRuleException("TOO_LATE", "closed")
        case "own":
            raise OutOfPaper("printer 3", 0)
        case "exit":
            sys.exit(3)
        case _:
            raise ValueError(command.data)


def steps(command: Command[str], context: SyncHandlerContext) -> Any:
    count = context.step("count", _count, command.data)
    context.progress(50, "halfway")
    if context.attempt == 1:
        raise ValueError("again")
    sent = context.send("replies", "counted", {"count": count}, priority="high", tags=["t"], delay=0)
    return {"count": count, "sent": str(sent.command_id)}


def _count(path: str) -> int:
    file = Path(path)
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    return len(file.read_text())


async def steps_async(command: Command[str], context: HandlerContext) -> Any:
    count = await context.step("count", _count, command.data)
    await context.progress(50, "halfway")
    sent = await context.send("replies", "counted", {"count": count})
    await context.extend_visibility(60)
    return str(sent.command_id)


def bad_requests(command: Command[Any], context: SyncHandlerContext) -> list[str]:
    found: list[str] = []
    for attempt in (
        lambda: context.progress(101),
        lambda: context.send("replies", "counted", priority="urgent"),
        lambda: context.send("replies", "counted", delay="soon"),  # type: ignore[call-overload]
        lambda: context.send("replies", "counted", due_at="soon"),  # type: ignore[call-overload]
        lambda: context.bus.get_command("x"),
        lambda: context.provided(int),
        lambda: context.complete(within=None),
    ):
        try:
            attempt()
        except Exception as error:  # their texts are what the test is about
            found.append(f"{type(error).__name__}: {error}")
    return found


def log(command: Command[Any], context: SyncHandlerContext) -> None:
    logger.warning("order %s is late", command.data, extra={"order": command.data})


def wait_for_cancel(command: Command[Any], context: SyncHandlerContext) -> None:
    context.progress(1, "began")
    eventually(lambda: context.canceled)
    context.raise_if_canceled()


def start_another(command: Command[str], context: SyncHandlerContext) -> None:
    """Leaves a process of its own behind, and never ends."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(command.data).write_text(f"{os.getpid()} {other.pid}")
    context.progress(1, "began")
    time.sleep(600)


_late: list[threading.Thread] = []
_late_refusals: list[list[str]] = []
_go_on = threading.Event()


def leave_thread(command: Command[Any], context: SyncHandlerContext) -> Any:
    """The first command leaves a thread that uses its context while the second one runs."""
    refusals: list[str] = []
    if command.data["first"]:

        def late() -> None:
            _go_on.wait()
            for use in (
                lambda: context.step("charge", lambda: "by the first"),
                lambda: context.progress(33, "by the first"),
                lambda: context.send(command.domain, "late", {}),
            ):
                try:
                    use()
                except LeaseLost as error:
                    refusals.append(str(error))

        _late.append(threading.Thread(target=late, daemon=True))
        _late[0].start()
        _late_refusals.append(refusals)
        return None
    _go_on.set()
    _late[0].join()
    return [context.step("charge", lambda: "by the second"), _late_refusals[0]]


def leave_asking_thread(command: Command[Any], context: SyncHandlerContext) -> int:
    """Leaves a thread that never stops to use its context."""

    def late() -> None:
        with suppress(LeaseLost):
            while True:
                context.progress(command.data, "late")

    threading.Thread(target=late, daemon=True).start()
    return int(command.data)


def return_twice(command: Command[Any], context: SyncHandlerContext) -> Any:
    """Returns in a forked process as well."""
    if command.data == 1:
        forked = os.fork()
        if forked == 0:
            logger.warning("in the forked process")
            try:
                context.progress(50, "forked")
            except InvalidOperationError:
                return "forked"
            return "not refused"
        return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
    return command.data


def die_with_heirs(command: Command[Any], context: SyncHandlerContext) -> None:
    """Ends while a process that it started holds all its files."""
    holds = [number for number in range(3, 64) if _is_open(number)]
    for number in holds:
        os.set_inheritable(number, True)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def misfit(command: Command[Any], context: SyncHandlerContext) -> None:
    """Raises what the worker could take for an error of its own."""
    if command.data == "timeout":
        raise TimeoutError("the peer is slow")
    msgspec.json.decode(b"{}", type=int)
