"""Keeps a handler's coroutine from ending more than itself.

An event loop lets SystemExit and KeyboardInterrupt of any task end the whole loop, and a coroutine may
ignore its cancellation for ever. A handler ends its command, not its worker: what escapes is carried
out of its task as a value, and what does not end is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from commandbus.worker.ending import CANCEL_SECONDS


class Escaped(msgspec.Struct, frozen=True):
    """What would have ended the loop."""

    error: BaseException


class OverTime(Exception):  # noqa: N818 - a signal between a runtime and this module
    """The handler did not end in its time; it was canceled, and perhaps left behind."""


def task_at_work() -> asyncio.Task[Any]:
    """The task that runs the caller."""
    task = asyncio.current_task()
    assert task is not None
    return task


async def contained(handling: Awaitable[Any]) -> Any:
    """The result of a handler, or what tried to escape from it."""
    try:
        result = await handling
    except (SystemExit, KeyboardInterrupt) as error:
        return Escaped(error)
    await take_cancellation()
    return result


async def take_cancellation() -> None:
    """Receive a cancellation that was requested and is not delivered yet, which the next await would
    raise in place of a result."""
    if task_at_work().cancelling():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


def uncontained(result: Any) -> Any:
    """The result again; what tried to escape is raised here, where it can do no harm."""
    if isinstance(result, Escaped):
        raise result.error
    return result


async def bounded(handling: Awaitable[Any], seconds: float) -> Any:
    """The result of a handler. Raises OverTime after `seconds`, whatever the handler does."""
    task = asyncio.ensure_future(contained(handling))
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _cancel(task)
        raise
    if task.done():
        return uncontained(task.result())
    await _cancel(task)
    raise OverTime


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.add_done_callback(_look_at)
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_SECONDS)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve how an abandoned task ended; asyncio would warn about it otherwise."""
    if not task.cancelled():
        task.exception()


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something that must not be left half done, though its awaiter is canceled meanwhile."""
    task, canceled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            canceled = error
    task.result()
    if canceled is not None:
        raise canceled
