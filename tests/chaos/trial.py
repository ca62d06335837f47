"""An experiment that is no stay in the laboratory: what was tried, how often, and what broke."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context


@dataclass
class Trial:
    name: str
    seed: int
    tried: int
    faults: Counter[str]
    broken: list[str]
    """What went wrong, in words; empty when all was well."""
    note: str = ""
    missing: list[str] = field(default_factory=list)
    """What could not be tried on this machine."""

    def __str__(self) -> str:
        found = [f"\n{self.name}: {self.tried:,} tried. {self.note}"]
        found += [f"    BROKEN {what}" for what in self.broken[:10]]
        found += [f"!!! SKIPPED: {what}" for what in self.missing]
        return "\n".join(found)


SHARED_SECONDS = 3.0
"""P15 beside other experiments, which start processes all the while and keep two processors busy. Stays
that have the machine alone judge it with its own number."""


def lanes(count: int) -> ProcessPoolExecutor:
    """So many experiments at a time, each in a process of its own: what one computes or pumps through
    its proxy holds up no other."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), max_tasks_per_child=1)
