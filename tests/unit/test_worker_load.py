"""How much a worker asks of its store, and how much it gets done: counted, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.services.historian import Historian
from commandbus.services.reclaimer import Reclaimer
from commandbus.services.standard import standard_services
from commandbus.store.records import SettleReport
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.worker.effects import Claim, Effect, Settle
from commandbus.worker.events import Settled, Tick
from tests.unit.cores import Bench

MINUTE, HOUR = 60.0, 3_600.0
SHORT = 0.1
"""The shortest poll interval that a worker takes."""
POLLED = 1_200
"""Questions in a minute of somebody who polls every 50 ms."""


def claims_while_idle(seconds: float, poll_interval: float) -> int:
    bench = Bench(poll_interval=poll_interval).begun()
    end, claims = bench.now + seconds, 1
    bench.empty()
    while (deadline := bench.core.deadline()) is not None and deadline < end:
        bench.now = deadline
        claims += len(bench.kinds(bench.tell(Tick()), Claim))
        bench.empty()
    return claims


def test_an_idle_worker_asks_a_hundredth_of_what_short_polling_asks() -> None:
    assert claims_while_idle(HOUR, SHORT) == pytest.approx(HOUR / SHORT, rel=0.01)
    assert claims_while_idle(HOUR, MINUTE) == HOUR / MINUTE
    assert claims_while_idle(HOUR, MINUTE) < claims_while_idle(HOUR, SHORT) / 100


def test_an_idle_minute_costs_a_known_number_of_questions() -> None:
    """Those of the claims, and those of every service that runs beside them."""
    with SyncCommandBus("memory://") as bus:
        worker = SyncWorker(bus, "orders")
        services = standard_services(
            worker._presence("threads"),
            bus.breakers,
            worker._closer,
            _without_cancel_requests(),
            worker._restarts,
            Reclaimer(worker.name, worker.domains, worker.settings.visibility_timeout),
            Historian(lambda: (0, 0)),
            worker.settings.visibility_timeout,
            bus.settings,
        )
        waits = {service.name: bus.session.run(service.work(bus.scope)) for service in services}
    services_ask = sum(MINUTE / wait for wait in waits.values())
    assert claims_while_idle(MINUTE, MINUTE) == 1
    assert services_ask <= 6, waits
    assert 1 + services_ask < POLLED / 100


def _without_cancel_requests() -> Any:
    from commandbus.services.cancellations import Cancellations

    return Cancellations(("orders",), lambda requests: None)


def work_off(commands: int, concurrency: int, poll_interval: float = MINUTE) -> tuple[float, int]:
    """The seconds in which so many commands of a second each are done, and the claims they took."""
    bench = Bench(concurrency=concurrency, prefetch=0, poll_interval=poll_interval).begun()
    start, left, done, claims = bench.now, commands, 0, 1
    effects: list[Effect] = []
    asked = concurrency
    while done < commands:
        if asked:
            found, asked = min(asked, left), 0
            left -= found
            effects = bench.claims(found) if found else bench.empty()
        else:
            bench.now += 1.0
            ended = len(bench.running)
            done += ended
            effects = bench.finish(ended)
        while effects:
            asked += sum(claim.limit for claim in bench.kinds(effects, Claim))
            claims += len(bench.kinds(effects, Claim))
            settles = bench.kinds(effects, Settle)
            effects = bench.tell(Settled(SettleReport())) if settles else []
    return bench.now - start, claims


def test_five_slots_do_five_times_as_much_as_one() -> None:
    assert work_off(100, concurrency=1)[0] == 100
    assert work_off(100, concurrency=5)[0] == 20


def test_under_load_long_waits_cost_nothing_against_short_polling() -> None:
    for concurrency in (1, 5):
        assert work_off(100, concurrency, MINUTE) == work_off(100, concurrency, SHORT)
