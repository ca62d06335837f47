"""The kinds of commands in the laboratory: how a command ends is in its type, so that the checker knows
what to expect."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from commandbus import (
    BusinessRuleException,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)
from tests.os_processes.child import Config
from tests.os_processes.handlers import ONCE_MORE, add_poison
from tests.os_processes.journal import Journal

DOMAINS = ("orders", "mails")
SOON = RetryPolicy(max_attempts=3, backoff_schedule=[0.05, 0.2])
BATCH_DONE = "batch_done"
"""What a batch sends when it is complete."""
FOLLOW_UP = "follow_up"
"""What a transfer sends from its transaction."""
GROUPED, STEPPED, ASKING, LIMITED, TICK = "grouped", "stepped", "asking", "limited", "tick"
"""One at a time of its group; records a step; wants a reply; few at once; sent by a schedule."""
PACED = "paced"
"""Few per second."""
ANSWERS = "answers"
"""The domain of replies, which nothing works on."""
LIMIT = 2
"""So many LIMITED commands of a domain may run at once."""
RATE, BURST = 10.0, 5
"""So many PACED commands of a domain may begin per second, and so many at once."""
GATED = (GROUPED, LIMITED, PACED)
"""What waits at a gate; not sent where a store has none."""
OPERATED = ("note", "permanent", GROUPED)
"""What operators cancel and retry."""
LASTING = "slow"
"""What runs so long that an operator can cancel it meanwhile."""
KILLERS = ("exit", "segfault")
"""They kill their worker."""
POISON = (
    "base_exception",
    "base_exception_async",
    "system_exit",
    "system_exit_async",
    "keyboard_interrupt_async",
    "generator_exit_async",
    "unprintable",
    "cancelled",
    "cancels_itself",
    "swallow",
    "endless",
)
"""They hang or confuse it, and are parked after two attempts."""
TYPES: dict[str, float] = {
    "note": 630,
    "transfer": 120,
    "flaky": 120,
    "slow": 30,
    "reject": 40,
    "permanent": 28,
    GROUPED: 60,
    STEPPED: 30,
    ASKING: 30,
    LIMITED: 20,
    PACED: 10,
    "exit": 1.5,
    "segfault": 1.5,
} | {name: 0.5 if name == "endless" else 1.5 for name in POISON}
"""Kinds of commands and how often each is sent, of a thousand. Transfers only where handlers can have a
transaction."""
NATIVE = (
    "note", "flaky", "reject", "permanent", BATCH_DONE, FOLLOW_UP, GROUPED, ASKING, LIMITED, PACED,
    TICK,
)  # fmt: skip
"""Handled in the way of the runtime; `slow` is not."""
FOUND = """select current_setting('search_path'), current_user::text, current_setting('TimeZone'),
    coalesce(current_setting('app.tenant', true), ''), coalesce(to_regclass('mess')::text, '')"""
"""What a session shows to a handler; the same to each, whatever others did."""
TOUCHES = (
    "set search_path to tenant_space, public",
    "set role tenant",
    "set time zone 'Asia/Tokyo'",
    "set app.tenant to 'acme'",
    "create temp table if not exists mess (n integer)",
)
LOOK_SECONDS = 0.05
INSERT = "insert into public.effect (id, fence) values (%s, %s)"


def attempts_max_of(command_type: str) -> int:
    return ONCE_MORE.max_attempts if command_type in POISON else SOON.max_attempts


def follow_up_of(command_id: str) -> str:
    return str(uuid5(NAMESPACE_OID, command_id))


def linger(seconds: float, context: Any) -> None:
    """Sleep, and end when a cancellation is requested meanwhile."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        context.raise_if_canceled()
        time.sleep(min(left, LOOK_SECONDS))


def end(command: Any, context: Any) -> None:
    match command.command_type:
        case "flaky" | "transfer" | "stepped":
            if context.attempt - context.crashes <= command.data["failures"]:
                raise TransientCommandError("FLAKY", "not yet")
        case "reject":
            raise BusinessRuleException("NO", "the business says no")
        case "permanent":
            raise PermanentCommandError("NEVER", "it cannot work")
        case "exit":
            os._exit(9)


def transfers(
    config: Config, journal: Journal, began: Callable[[Any, Any], dict[str, Any]]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Handlers in a transaction, `async def` and `def`: each writes a row and sends a command in it."""
    first_seen: list[Any] = []

    def compare(command: Any, row: Any) -> None:
        """Whether the session is as the first one was that this process saw."""
        if not first_seen:
            first_seen.append(row)
        if row != first_seen[0]:
            journal.write("leak", id=str(command.command_id), found=[first_seen[0], row])

    def touch(command: Any) -> str | None:
        """What this one does to its session, if anything."""
        if not config["touches_sessions"]:
            return None
        return TOUCHES[int(str(command.command_id)[:4], 16) % len(TOUCHES)]

    def follow(command: Any) -> dict[str, Any]:
        """Write down that the transaction of a transfer may send this."""
        own, domain = follow_up_of(str(command.command_id)), command.domain
        sent = {"id": own, "domain": domain, "type": FOLLOW_UP, "priority": 5, "delay": 0}
        journal.write("send_invoked", commands=[sent | {"data": {"seconds": 0}}])
        return {"command_id": own, "data": {"seconds": 0}}

    async def transfer_async(command: Any, context: Any) -> None:
        token = began(command, context)
        cursor = await context.connection.execute(FOUND)
        compare(command, await cursor.fetchone())
        if harm := touch(command):
            await context.connection.execute(harm)
        await context.connection.execute(INSERT, (token["id"], token["token"]))
        await context.bus.send(command.domain, FOLLOW_UP, **follow(command))
        await asyncio.sleep(command.data["seconds"])
        end(command, context)

    def transfer_sync(command: Any, context: Any) -> None:
        token = began(command, context)
        compare(command, context.connection.execute(FOUND).fetchone())
        if harm := touch(command):
            context.connection.execute(harm)
        context.connection.execute(INSERT, (token["id"], token["token"]))
        context.bus.send(command.domain, FOLLOW_UP, **follow(command))
        time.sleep(command.data["seconds"])
        end(command, context)

    return transfer_async, transfer_sync


def registry_for(config: Config, journal: Journal) -> HandlerRegistry:
    def began(command: Any, context: Any) -> dict[str, Any]:
        token = {"id": str(command.command_id), "token": context.fence, "attempt": context.attempt}
        journal.write("handled", runtime=config["runtime"], **token)
        return token

    async def handle_async(command: Any, context: Any) -> None:
        token = began(command, context)
        await asyncio.sleep(command.data["seconds"])
        end(command, context)
        journal.write("finished", **token)

    def handle_sync(command: Any, context: Any) -> None:
        token = began(command, context)
        linger(command.data["seconds"], context)
        end(command, context)
        journal.write("finished", **token)

    async def stepped_async(command: Any, context: Any) -> None:
        token = began(command, context)
        await context.step("charge", lambda: journal.write("step", **token))
        journal.write("step_recorded", **token)
        end(command, context)

    def stepped_sync(command: Any, context: Any) -> None:
        token = began(command, context)
        context.step("charge", lambda: journal.write("step", **token))
        journal.write("step_recorded", **token)
        end(command, context)

    registry = HandlerRegistry()
    transfer_async, transfer_sync = transfers(config, journal, began)
    native, foreign, transfer, stepped = handle_async, handle_sync, transfer_async, stepped_async
    if config["runtime"] == "threads":
        native, foreign, transfer, stepped = (  # type: ignore[assignment]
            handle_sync, handle_async, transfer_sync, stepped_sync,
        )  # fmt: skip
    for domain in DOMAINS:
        add_poison(registry, domain, began)
        for name in NATIVE:
            registry.register(domain, name, native, retry=SOON)
        registry.register(domain, STEPPED, stepped, retry=SOON)
        registry.register(domain, "slow", foreign, retry=SOON)
        if config["transactional"]:
            registry.register(domain, "transfer", transfer, retry=SOON, transactional=True)
    return registry
