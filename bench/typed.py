"""`python -m bench.typed`: what a typed send costs beside a send by names, in pairs.

The same payload is sent to a fresh store each time, one command a call, by one thread. In memory a
send costs least, so the share of the contract is largest there.
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

SENDS = 5_000
PAIRS = 15

payments = HandlerRegistry("payments")


@payments.command
def charge(order: int, amount: Decimal, currency: str, note: str | None = None) -> None: ...


def by_names(bus: SyncCommandBus, order: int) -> None:
    data = {"order": order, "amount": "9.99", "currency": "EUR", "note": None}
    bus.send("payments", "charge", data)


def typed(bus: SyncCommandBus, order: int) -> None:
    bus.send(charge(order=order, amount=Decimal("9.99"), currency="EUR"))


def rate(url: str, send: Callable[[SyncCommandBus, int], None], count: int) -> float:
    """Sends per second."""
    with SyncCommandBus(url) as bus:
        for order in range(count // 10):
            send(bus, order)
        began = time.perf_counter()
        for order in range(count):
            send(bus, order)
        return count / (time.perf_counter() - began)


def pairs(url: Callable[[], str], count: int, number: int) -> list[tuple[float, float]]:
    """The rates by names and typed, in turns, so that neither is always first."""
    found = []
    for turn in range(number):
        if turn % 2:
            second, first = rate(url(), typed, count), rate(url(), by_names, count)
        else:
            first, second = rate(url(), by_names, count), rate(url(), typed, count)
        found.append((first, second))
    return found


def typed_sends(lab: Lab, scale: float) -> dict[str, float]:
    """Both rates in memory, and the median of what typed sends cost more, in percent."""
    found = pairs(lambda: "memory://", max(500, int(SENDS * scale)), 5)
    return {
        "send_named": median(named for named, _ in found),
        "send_typed": median(typed for _, typed in found),
        "typed_cost": _cost(found),
    }


def _cost(found: list[tuple[float, float]]) -> float:
    return 100 * (median(named / typed for named, typed in found) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.typed", description=__doc__)
    parser.add_argument("--sends", type=int, default=SENDS)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fresh = iter(range(1_000_000))
        stores: dict[str, Callable[[], str]] = {
            "memory": lambda: "memory://",
            "sqlite": lambda: f"sqlite:///{Path(folder) / f'{next(fresh)}.db'}",
        }
        for name, url in stores.items():
            count = options.sends if name == "memory" else options.sends // 5
            found = pairs(url, count, options.pairs)
            named, by_type = (median(rates) for rates in zip(*found, strict=True))
            print(
                f"{name}: {named:,.0f}/s by names, {by_type:,.0f}/s typed: "
                f"a typed send costs {_cost(found):+.1f} % (at most 5 %)",
                flush=True,
            )


if __name__ == "__main__":
    main()
