"""The handlers of the processes under test: well-behaved ones that note what they did, and poison."""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from commandbus import HandlerRegistry, RetryPolicy, TransientCommandError
from tests.os_processes.journal import Journal

ONCE_MORE = RetryPolicy(max_attempts=2, backoff_schedule=[0.01])
"""Poison is tried twice, soon: enough to see that it is bounded."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class Base(BaseException):
    pass


def add_noting(registry: HandlerRegistry, domain: str, effects: Journal, runtime: str) -> None:
    """`note` takes `seconds`, or until a file is there, and notes its run; `note_blocking` blocks its
    event loop meanwhile; `flaky` fails in its first attempts."""

    def pauses(command: Any) -> Iterator[float]:
        data = command.data or {}
        if seconds := float(data.get("seconds", 0)):
            yield seconds
        while "until" in data and not Path(data["until"]).exists():
            yield 0.01

    def noted(command: Any, context: Any) -> None:
        facts = {"id": str(command.command_id), "attempt": context.attempt, "fence": context.fence}
        effects.write("handled", type=command.command_type, worker=context.worker, **facts)
        if context.attempt - context.crashes <= (command.data or {}).get("failures", 0):
            raise TransientCommandError("FLAKY", "not yet")

    async def note_async(command: Any, context: Any) -> None:
        for seconds in pauses(command):
            await asyncio.sleep(seconds)
        noted(command, context)

    def note_sync(command: Any, context: Any) -> None:
        for seconds in pauses(command):
            time.sleep(seconds)
        noted(command, context)

    async def note_blocking(command: Any, context: Any) -> None:
        note_sync(command, context)

    async def member(command: Any, context: Any) -> None:
        facts = {"id": str(command.command_id), "worker": context.worker, "data": command.data}
        effects.write("began", type=command.command_type, **facts)
        await asyncio.sleep(0.005)
        effects.write("ended", type=command.command_type, **facts)

    registry.register(domain, "member", member)
    registry.register(domain, "note_blocking", note_blocking)
    native, foreign = (note_async, note_sync) if runtime == "asyncio" else (note_sync, note_async)
    registry.register(domain, "note", native)
    registry.register(domain, "note_foreign", foreign)
    soon = RetryPolicy(max_attempts=3, backoff_schedule=[0.05])
    registry.register(domain, "flaky", native, retry=soon)


RAISED: dict[str, Callable[[], BaseException]] = {
    "base_exception": lambda: Base("below Exception"),
    "base_exception_async": lambda: Base("below Exception"),
    "system_exit": lambda: SystemExit(3),
    "system_exit_async": lambda: SystemExit(3),
    "keyboard_interrupt_async": KeyboardInterrupt,
    "generator_exit_async": GeneratorExit,
    "unprintable": Unprintable,
    "cancelled": asyncio.CancelledError,
}
"""What handlers raise, by command type."""
BLOCKING = ("base_exception", "system_exit", "unprintable")


def raising(name: str, began: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def blocking(command: Any, context: Any) -> None:
        began(command, context)
        error = RAISED[name]()
        raise error

    async def awaiting(command: Any, context: Any) -> None:
        blocking(command, context)

    return blocking if name in BLOCKING else awaiting


def add_poison(
    registry: HandlerRegistry, domain: str, began: Callable[[Any, Any], Any] = lambda *_: None
) -> None:
    """`began` is called with every run."""
    for name in RAISED:
        registry.register(domain, name, raising(name, began), retry=ONCE_MORE)

    @registry.handler(domain, "exit")
    def exit_at_once(command: Any, context: Any) -> None:
        began(command, context)
        os._exit(9)

    @registry.handler(domain, "segfault")
    def segfault(command: Any, context: Any) -> None:
        began(command, context)
        ctypes.string_at(0)

    @registry.handler(domain, "cancels_itself", retry=ONCE_MORE)
    async def cancels_itself(command: Any, context: Any) -> None:
        began(command, context)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    @registry.handler(domain, "swallow", retry=ONCE_MORE, timeout=0.2)
    async def swallow(command: Any, context: Any) -> None:
        began(command, context)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    @registry.handler(domain, "endless", retry=ONCE_MORE, timeout=0.3)
    def endless(command: Any, context: Any) -> None:
        began(command, context)
        while True:
            pass
