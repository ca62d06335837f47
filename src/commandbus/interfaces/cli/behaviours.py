"""Handlers for what `load` sends: each command says how it wants to end.

`commandbus worker --load` carries them out, and so does any worker with `build_registry`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

import msgspec

from commandbus import (
    BusinessRuleException,
    Command,
    HandlerContext,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)
from commandbus.interfaces.cli import serving
from commandbus.interfaces.cli.mixing import BEHAVIOURS, DOMAIN, TYPE

RETRY = RetryPolicy(max_attempts=3, backoff_schedule=[0.5, 1.0])
CRASH_CODE = 70


class Load(msgspec.Struct):
    """The payload: how to behave, and how long it takes."""

    number: int = 0
    behaviour: str = "success"
    seconds: float = 0.0


async def carry_out(command: Command[Load], context: HandlerContext) -> dict[str, object]:
    """Behave as the command says. A lost worker uses no attempt, so its runs are not counted."""
    wanted = command.data
    if wanted.seconds > 0:
        await asyncio.sleep(wanted.seconds)
    match wanted.behaviour:
        case "success" | "slow":
            pass
        case "transient":
            if context.attempt - context.crashes == 1:
                raise TransientCommandError("LOAD_TRANSIENT", "it fails once, as requested")
        case "exhausted":
            raise TransientCommandError("LOAD_EXHAUSTED", "it always fails, as requested")
        case "permanent":
            raise PermanentCommandError("LOAD_PERMANENT", "it needs an operator, as requested")
        case "business":
            raise BusinessRuleException("LOAD_BUSINESS", "it is refused, as requested")
        case "crash":
            _crash(context)
        case _:
            known = ", ".join(BEHAVIOURS)
            raise PermanentCommandError(
                "LOAD_UNKNOWN", f"there is no behaviour {wanted.behaviour!r}, only {known}"
            )
    return {"number": wanted.number, "attempt": context.attempt}


def _crash(context: HandlerContext) -> None:
    """Kill the process, the first time; but never a process that is not a worker's."""
    if not serving.is_worker_process:
        raise PermanentCommandError("LOAD_CRASH", "only a process of `commandbus worker` may crash")
    if context.crashes == 0:
        os._exit(CRASH_CODE)


def build_registry(domains: Iterable[str] = (DOMAIN,)) -> HandlerRegistry:
    """A registry that carries out `load` commands of these domains."""
    built = HandlerRegistry()
    for domain in dict.fromkeys(domains):
        built.register(domain, TYPE, carry_out, retry=RETRY)
    return built


registry = build_registry()
