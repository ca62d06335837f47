"""A bus with something of everything, for pages to show: successes, failures, parked commands, a batch,
schedules, a breaker, a paused domain, and a worker that reported itself."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from commandbus import (
    BusinessRuleException,
    Command,
    CommandBus,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    Schedule,
    SendRequest,
    TransientCommandError,
    Worker,
)
from commandbus.retry import none

registry = HandlerRegistry()


class Shipment(msgspec.Struct):
    """What `ship` takes."""

    order: int
    city: str
    express: bool = False
    weight: float = 1.0


class Payment(msgspec.Struct):
    account: int
    amount: float
    card_token: str = "tok_1a2b3c"


@registry.handler("orders", "ship", retry=RetryPolicy(2, none()))
async def ship(command: Command[Shipment], context: Any) -> dict[str, Any]:
    if command.data.city == "Atlantis":
        raise PermanentCommandError("NO_SUCH_CITY", f"{command.data.city} is not on the map")
    return {"parcel": f"P-{command.data.order:05}"}


@registry.handler("payments", "charge", retry=RetryPolicy(3, none()))
async def charge(command: Command[Payment], context: Any) -> dict[str, Any]:
    if command.data.amount > 5_000:
        raise BusinessRuleException("LIMIT", "more than the account allows")
    if command.data.account % 17 == 0:
        raise TransientCommandError("BANK_TIMEOUT", "the bank did not answer within 10 s")
    return {"receipt": command.data.account * 7}


@registry.handler("mail", "welcome")
async def welcome(command: Command[Any], context: Any) -> None:
    return None


CITIES = ("Berlin", "Porto", "Lyon", "Oslo", "Atlantis", "Gdańsk", "Turin", "Ghent", "Cork", "Graz")


async def fill(bus: CommandBus, *, parked: int = 0) -> None:
    """Commands of all kinds, most of them carried out."""
    requests = [
        SendRequest(
            "orders",
            "ship",
            {"order": n, "city": CITIES[n % len(CITIES)], "express": n % 4 == 0, "weight": 1.5},
            tags=["express"] if n % 4 == 0 else [],
        )
        for n in range(160)
    ]
    requests += [
        SendRequest("payments", "charge", {"account": n, "amount": 90.0 * n, "card_token": "tok_9"})
        for n in range(1, 80)
    ]
    requests += [SendRequest("mail", "welcome", {"user": n, "password": "s3cret"}) for n in range(40)]
    await bus.send_many(requests)
    batch = [
        SendRequest("orders", "ship", {"order": 1_000 + n, "city": CITIES[n % 7]}) for n in range(120)
    ]
    await bus.create_batch(batch, name="autumn sale")
    await work(bus)
    for name, cron, command_type in (
        ("nightly-report", "0 3 * * *", "report"),
        ("remind", "*/15 * * * *", "welcome"),
        ("stock", "30 6 * * 1-5", "count"),
    ):
        domain = "mail" if command_type == "welcome" else "orders"
        await bus.put_schedule(Schedule(name=name, domain=domain, command_type=command_type, cron=cron))
    await bus.acting("ana").disable_schedule("stock")
    await bus.acting("ana").open_breaker("bank", 900, reason="maintenance until 10")
    await bus.acting("worker-1").open_breaker("warehouse", 0.01)
    await bus.acting("ana").reset_breaker("warehouse")
    await bus.send("mail", "welcome", {"user": 99}, delay=timedelta(hours=3))
    letters = [SendRequest("mail", "welcome", {"user": n}) for n in range(60)]
    await bus.create_batch(letters[:24], name="letters of the week")
    await work(bus)
    await bus.acting("ana").pause("mail", "the mail server moves")
    await bus.create_batch(letters, name="letters of next week")
    if parked:
        await bus.send_many(
            SendRequest("orders", "ship", {"order": n, "city": "Atlantis"}) for n in range(parked)
        )
        await work(bus)


async def park(bus: CommandBus) -> UUID:
    """One more parked command."""
    sent = await bus.send("orders", "ship", {"order": 1, "city": "Atlantis"})
    await work(bus, ("orders",))
    return sent.command_id


async def work(
    bus: CommandBus,
    domains: tuple[str, ...] = ("orders", "payments", "mail"),
    handlers: HandlerRegistry = registry,
) -> None:
    """Carry out what waits."""
    worker = Worker(bus, list(domains), handlers, concurrency=8)
    running = asyncio.create_task(worker.run())
    while True:
        stats = [await bus.stats(domain) for domain in domains]
        if not any((s.ready and not s.paused) or s.running for s in stats):
            break
        await asyncio.sleep(0.02)
    await worker.stop()
    await running


async def present(bus: CommandBus, quiet: int | None = None) -> None:
    """Workers that reported themselves, as a fleet would show; one of them may be quiet."""
    from commandbus.domain.presence import WorkerInfo, WorkerState
    from commandbus.operations.presence import report_worker

    now = datetime.now(UTC)
    for number, runtime in enumerate(("asyncio", "asyncio", "threads")):
        info = WorkerInfo(
            name=f"worker-{number + 1}",
            host=f"node-{number % 2 + 1}",
            pid=4_120 + number,
            runtime=runtime,
            domains=("orders", "payments") if number < 2 else ("mail",),
            command_types=(("orders", "ship"), ("payments", "charge"))
            if number < 2
            else (("mail", "welcome"),),
            concurrency=8,
            started_at=now - timedelta(hours=5, minutes=number),
            seen_at=now,
            version="0.1.0",
            state=WorkerState.QUIET if number == quiet else WorkerState.RUNNING,
            configured_concurrency=4 if number == 0 else 8,
            memory_bytes=(61 + 17 * number) << 20,
            cpu_seconds=250.0 * (number + 1),
        )
        await bus.session.run(report_worker(bus.scope, info, 0))
