"""The kinds of commands in the laboratory: how a command ends is in its type, so that the checker knows
what to expect."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from commandbus import (
    BusinessRuleException,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)
from tests.processes.child import Config
from tests.processes.handlers import ONCE_MORE, add_poison
from tests.processes.journal import Journal

DOMAINS = ("orders", "mails")
SOON = RetryPolicy(max_attempts=3, backoff_schedule=[0.05, 0.2])
BATCH_DONE = "batch_done"
"""What a batch sends when it is complete."""
FOLLOW_UP = "follow_up"
"""What a transfer sends from its transaction."""
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
    "swallow",
    "endless",
)
"""They hang or confuse it, and are parked after two attempts."""
TYPES: dict[str, float] = {
    "note": 640,
    "transfer": 120,
    "flaky": 120,
    "slow": 30,
    "reject": 40,
    "permanent": 28,
    "exit": 1.5,
    "segfault": 1.5,
} | {name: 0.5 if name == "endless" else 1.5 for name in POISON}
"""Kinds of commands and how often each is sent, of a thousand. Transfers only where handlers can have a
transaction."""
INSERT = "insert into effect (id, fence) values (%s, %s)"


def attempts_max_of(command_type: str) -> int:
    return ONCE_MORE.max_attempts if command_type in POISON else SOON.max_attempts


def follow_up_of(command_id: str) -> str:
    return str(uuid5(NAMESPACE_OID, command_id))


def end(command: Any, context: Any) -> None:
    match command.command_type:
        case "flaky" | "transfer":
            if context.attempt - context.crashes <= command.data["failures"]:
                raise TransientCommandError("FLAKY", "not yet")
        case "reject":
            raise BusinessRuleException("NO", "the business says no")
        case "permanent":
            raise PermanentCommandError("NEVER", "it cannot work")
        case "exit":
            os._exit(9)


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
        time.sleep(command.data["seconds"])
        end(command, context)
        journal.write("finished", **token)

    def follow(command: Any) -> dict[str, Any]:
        """Write down that the transaction of a transfer may send this."""
        own, domain = follow_up_of(str(command.command_id)), command.domain
        sent = {"id": own, "domain": domain, "type": FOLLOW_UP, "priority": 5, "delay": 0}
        journal.write("send_invoked", commands=[sent | {"data": {"seconds": 0}}])
        return {"command_id": own, "data": {"seconds": 0}}

    async def transfer_async(command: Any, context: Any) -> None:
        token = began(command, context)
        await context.connection.execute(INSERT, (token["id"], token["token"]))
        await context.bus.send(command.domain, FOLLOW_UP, **follow(command))
        await asyncio.sleep(command.data["seconds"])
        end(command, context)

    def transfer_sync(command: Any, context: Any) -> None:
        token = began(command, context)
        context.connection.execute(INSERT, (token["id"], token["token"]))
        context.bus.send(command.domain, FOLLOW_UP, **follow(command))
        time.sleep(command.data["seconds"])
        end(command, context)

    registry = HandlerRegistry()
    native, foreign, transfer = handle_async, handle_sync, transfer_async
    if config["runtime"] == "threads":
        native, foreign, transfer = handle_sync, handle_async, transfer_sync  # type: ignore[assignment]
    for domain in DOMAINS:
        add_poison(registry, domain, began)
        for name in ("note", "flaky", "reject", "permanent", BATCH_DONE, FOLLOW_UP):
            registry.register(domain, name, native, retry=SOON)
        registry.register(domain, "slow", foreign, retry=SOON)
        if config["transactional"]:
            registry.register(domain, "transfer", transfer, retry=SOON, transactional=True)
    return registry
