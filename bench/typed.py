"""`python -m bench.typed`: what a typed send costs beside a send by names, in pairs.

The same payload, one command a call, one thread, on one store. In memory a send costs least, so the
share of the contract is largest there.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from statistics import median

from bench.lab import Lab
from commandbus import HandlerRegistry
from commandbus.sync import SyncCommandBus

TURN = 200
PAIRS = 300
AMOUNT = Decimal("9.99")

payments = HandlerRegistry("payments")


@payments.command
def charge(order: int, amount: Decimal, currency: str, note: str | None = None) -> None: ...


def by_names(bus: SyncCommandBus, order: int) -> None:
    data = {"order": order, "amount": str(AMOUNT), "currency": "EUR", "note": None}
    bus.send("payments", "charge", data)


def typed(bus: SyncCommandBus, order: int) -> None:
    bus.send(charge(order=order, amount=AMOUNT, currency="EUR"))


def pairs(url: str, number: int) -> list[tuple[float, float]]:
    """The rates by names and typed, in sends per second of processor time. Short turns on one store,
    so that what else the machine does meets both, and neither is always first."""
    found = []
    with SyncCommandBus(url) as bus:
        for turn in range(number + 1):
            if turn % 2:
                second, first = _rate(bus, typed), _rate(bus, by_names)
            else:
                first, second = _rate(bus, by_names), _rate(bus, typed)
            found.append((first, second))
    return found[1:]  # the first pair warms up


def _rate(bus: SyncCommandBus, send: Callable[[SyncCommandBus, int], None]) -> float:
    began = time.process_time()
    for order in range(TURN):
        send(bus, order)
    return TURN / (time.process_time() - began)


def typed_sends(lab: Lab, scale: float) -> dict[str, float]:
    """Both rates in memory, and the median of what typed sends cost more, in percent."""
    found = pairs("memory://", max(20, int(PAIRS * scale)))
    return {
        "send_named": median(named for named, _ in found),
        "send_typed": median(typed for _, typed in found),
        "typed_cost": _cost(found),
    }


def _cost(found: list[tuple[float, float]]) -> float:
    return 100 * (median(named / typed for named, typed in found) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.typed", description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, url in (("memory", "memory://"), ("sqlite", f"sqlite:///{Path(folder) / 'bus.db'}")):
            found = pairs(url, options.pairs if name == "memory" else options.pairs // 10)
            named, by_type = (median(rates) for rates in zip(*found, strict=True))
            print(
                f"{name}: {named:,.0f}/s by names, {by_type:,.0f}/s typed: "
                f"a typed send costs {_cost(found):+.1f} % (at most 5 %)",
                flush=True,
            )


if __name__ == "__main__":
    main()
