"""The register of seeded bugs, and how they get into the code."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import msgspec

BUGS: dict[str, Callable[[], None]] = {}
PROMISES: dict[str, str] = {}
"""What each must be seen to break."""
PLACES: dict[str, str] = {}
"""Where each is switched on, if not with SQLite."""
KINDS: dict[str, dict[str, float]] = {}
"""Kinds of commands that some need to show."""
PLANS: dict[str, dict[str, Any]] = {}
"""What the stays of some need beyond that: a backlog, or one kind of fault."""
EXPERIMENTS: dict[str, str] = {}
"""Experiments that show those that no stay shows, by the names that `hunt.SMALL` has for them."""
READERS: set[str] = set()
"""Those of reads, which the laboratory itself has to have."""
NEED_FREEZES: set[str] = set()
"""Those that only a worker shows which sleeps through its lease, again and again."""
OF_RECORDERS: set[str] = set()
"""Those of flight recorders. The others are shown without: what they break is the end of leases."""
NO_RECORDER = "no bug, and no recorder"
"""As a bug: the control of those that are shown without flight recorders."""
chance = random.Random()
replace = msgspec.structs.replace


def has_recorders(name: str | None) -> bool:
    """Whether workers with this bug have flight recorders, or those without any."""
    return name is None or name in OF_RECORDERS


def switch_on(name: str) -> None:
    # Processes that were forked from one would all take the same chances.
    chance.seed()
    if not has_recorders(name):
        os.environ["COMMANDBUS_RECORDER"] = "off"
    if name != NO_RECORDER:
        BUGS[name]()


def place_of(name: str) -> str:
    return PLACES.get(name, "sqlite")


def bug(
    promise: str,
    *,
    postgres: bool = False,
    pgmq: bool = False,
    needs_freezes: bool = False,
    reader: bool = False,
    recorder: bool = False,
    kinds: dict[str, float] | None = None,
    plan: dict[str, Any] | None = None,
    experiment: str | None = None,
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(function: Callable[[], None]) -> Callable[[], None]:
        name = function.__name__
        BUGS[name], PROMISES[name] = function, promise
        if postgres or pgmq:
            PLACES[name] = "pgmq" if pgmq else "postgres"
        if kinds:
            KINDS[name] = kinds
        if plan:
            PLANS[name] = plan
        if experiment:
            EXPERIMENTS[name] = experiment
        if reader:
            READERS.add(name)
        if recorder:
            OF_RECORDERS.add(name)
        if needs_freezes:
            NEED_FREEZES.add(name)
        return function

    return add


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function by `wrapper(original, …)`."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **more: wrapper(original, *args, **more))
