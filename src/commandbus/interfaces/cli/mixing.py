"""A mix of behaviours: from `success=90,transient=5` to commands in that proportion."""

from __future__ import annotations

import random
from math import isfinite

from commandbus.interfaces.cli.exits import CliError, Exit

DOMAIN = TYPE = "load"
BEHAVIOURS = {
    "success": "completes",
    "slow": "completes, but takes longer",
    "transient": "fails once, then completes",
    "exhausted": "fails until it is parked",
    "permanent": "is parked at once",
    "business": "fails, final",
    "crash": "ends its worker's process, then completes",
}
"""What a command can do."""


def parse_mix(given: str) -> dict[str, float]:
    """Weights by behaviour. Raises CliError for a behaviour or number that makes no sense."""
    weights: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        name, separator, number = (piece.strip() for piece in part.partition("="))
        if name not in BEHAVIOURS or name in weights:
            what = "is there twice" if name in weights else "is no behaviour"
            raise CliError(f"--mix: {name!r} {what}; known are {', '.join(BEHAVIOURS)}.", Exit.USAGE)
        try:
            weights[name] = float(number) if separator else 1.0
        except ValueError:
            weights[name] = -1.0
        if not isfinite(weights[name]) or weights[name] < 0:
            raise CliError(f"--mix: {name} needs a weight such as {name}=5, not {part!r}.", Exit.USAGE)
    if not sum(weights.values()):
        raise CliError("--mix: give at least one behaviour with a weight, as success=1.", Exit.USAGE)
    return weights


def shares(weights: dict[str, float], count: int) -> dict[str, int]:
    """How many of `count` behave how: in proportion to the weights, and `count` together."""
    total = sum(weights.values())
    exact = {name: count * weight / total for name, weight in weights.items()}
    whole = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: whole[name] - exact[name])
    for name in by_remainder[: count - sum(whole.values())]:
        whole[name] += 1
    return whole


def shuffled(numbers: dict[str, int], seed: int) -> list[str]:
    """The behaviours one after another; the same seed gives the same order."""
    order = [name for name, number in numbers.items() for _ in range(number)]
    random.Random(seed).shuffle(order)
    return order
