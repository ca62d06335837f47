"""The commands of the demo, and their handlers.

Each command carries its fate, so that the demo knows in advance how it must end and can check itself:
most succeed, some only at the second or third attempt, some are refused by a business rule, and a few
need a person.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from commandbus import (
    BusinessRuleException,
    Command,
    CommandStatus,
    HandlerContext,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
)
from commandbus.domain.ids import new_id
from commandbus.sync import SyncHandlerContext

DOMAINS = ("payments", "reports")
RETRY = RetryPolicy(max_attempts=3, backoff_schedule=[0.3, 0.8], jitter=0.4)

CountRetry = Callable[[], None]


class Fate(msgspec.Struct):
    """How a command goes: `fails` times a transient error, then `end`."""

    end: str = "completed"
    fails: int = 0
    seconds: float = 0.01


class Work(msgspec.Struct):
    """The payload of every command of the demo."""

    number: int
    customer: str
    amount: float
    fate: Fate


@dataclass(frozen=True, slots=True)
class Kind:
    """A command type: how often it comes, how urgent it is, and how it can go wrong."""

    domain: str
    name: str
    weight: int
    priority: str
    transient: tuple[str, str]
    business: tuple[str, str]
    permanent: tuple[str, str]


KINDS = (
    Kind(
        "payments",
        "ChargeCard",
        34,
        "normal",
        ("GATEWAY_TIMEOUT", "the card network did not answer in time"),
        ("CARD_DECLINED", "the bank says no"),
        ("CURRENCY_UNKNOWN", "'XAZ' is not a currency"),
    ),
    Kind(
        "payments",
        "CheckFraud",
        14,
        "high",
        ("SCORING_BUSY", "the scoring service has no free slot"),
        ("ACCOUNT_BLOCKED", "the account is blocked"),
        ("NO_HISTORY", "the customer has no history to score"),
    ),
    Kind(
        "payments",
        "RefundOrder",
        12,
        "normal",
        ("LEDGER_LOCKED", "the ledger is being closed"),
        ("ALREADY_REFUNDED", "the order was refunded before"),
        ("ORDER_MISSING", "there is no such order"),
    ),
    Kind(
        "reports",
        "SendReceipt",
        25,
        "normal",
        ("SMTP_421", "the mail server is busy"),
        ("UNSUBSCRIBED", "the customer wants no mail"),
        ("ADDRESS_INVALID", "the address has no @"),
    ),
    Kind(
        "reports",
        "BuildReport",
        15,
        "low",
        ("WAREHOUSE_LOCKED", "the warehouse loads new data"),
        ("PERIOD_OPEN", "the month has not ended"),
        ("TEMPLATE_MISSING", "the template was deleted"),
    ),
)

FATES = (
    (840, "completed", 0),
    (65, "completed", 1),
    (30, "completed", 2),
    (30, "failed", 0),
    (20, "permanent", 0),
    (10, "exhausted", 3),
    (5, "bug", 0),
)
"""Per thousand: how it ends, after how many transient failures."""

ENDS = {
    "completed": CommandStatus.COMPLETED,
    "failed": CommandStatus.FAILED,
    "permanent": CommandStatus.IN_TROUBLESHOOTING_QUEUE,
    "exhausted": CommandStatus.IN_TROUBLESHOOTING_QUEUE,
    "bug": CommandStatus.IN_TROUBLESHOOTING_QUEUE,
}


def pace_of(count: int) -> float:
    """How far the sends are spread out: a short demo is over sooner."""
    return min(1.0, max(0.1, count / 2000))


def plan_commands(count: int, seed: int, prefix: str = "") -> list[SendRequest]:
    """The commands to send, with ids, priorities and delays."""
    dice, pace = random.Random(seed), pace_of(count)
    kinds = dice.choices(KINDS, [kind.weight for kind in KINDS], k=count)
    fates = dice.choices(FATES, [weight for weight, _, _ in FATES], k=count)
    planned: list[SendRequest] = []
    for number, (kind, (_, end, fails)) in enumerate(zip(kinds, fates, strict=True), 1):
        fate = Fate(end, fails, round(dice.uniform(0.004, 0.03), 4))
        customer = f"customer-{dice.randrange(1, 500):03}"
        work = Work(number, customer, round(dice.uniform(5, 500), 2), fate)
        delay = round(dice.uniform(0.4, 4.0) * pace, 2) if dice.random() < 0.12 else None
        planned.append(
            SendRequest(
                prefix + kind.domain,
                kind.name,
                work,
                command_id=new_id(),
                priority=kind.priority,
                delay=delay,
                tags=("demo",),
            )
        )
    return planned


def expected_ends(planned: list[SendRequest]) -> Counter[CommandStatus]:
    """How many commands must end in which status."""
    return Counter(ENDS[request.data.fate.end] for request in planned)


def build_registry(count_retry: CountRetry, prefix: str) -> HandlerRegistry:
    """Handlers for all kinds: `async def` for most, a plain `def` for reports. `count_retry` is called
    for each attempt that is a retry."""
    registry = HandlerRegistry()
    for kind in KINDS:
        make = _blocking if kind.name == "BuildReport" else _awaiting
        registry.register(prefix + kind.domain, kind.name, make(kind, count_retry), retry=RETRY)
    return registry


def _awaiting(kind: Kind, count_retry: CountRetry) -> Callable[..., Any]:
    async def handle(command: Command[Work], context: HandlerContext) -> dict[str, Any]:
        await asyncio.sleep(command.data.fate.seconds)
        return _carry_out(kind, command.data, context, count_retry)

    return handle


def _blocking(kind: Kind, count_retry: CountRetry) -> Callable[..., Any]:
    def handle(command: Command[Work], context: SyncHandlerContext) -> dict[str, Any]:
        time.sleep(command.data.fate.seconds)
        return _carry_out(kind, command.data, context, count_retry)

    return handle


def _carry_out(
    kind: Kind, work: Work, context: HandlerContext | SyncHandlerContext, count_retry: CountRetry
) -> dict[str, Any]:
    """Meet the command's fate. A lost worker uses no attempt, so its runs are not counted."""
    attempt = context.attempt - context.crashes
    if attempt > 1:
        count_retry()
    if attempt <= work.fate.fails:
        raise TransientCommandError(*kind.transient)
    match work.fate.end:
        case "failed":
            raise BusinessRuleException(*kind.business)
        case "permanent":
            raise PermanentCommandError(*kind.permanent)
        case "bug":
            return {"share": work.amount / _orders_of(work)}
        case _:
            return {"number": work.number, "amount": work.amount}


def _orders_of(work: Work) -> int:
    """A mistake on purpose, for a traceback to look at."""
    return len(work.customer) - len(work.customer)
