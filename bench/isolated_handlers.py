"""Handlers for `bench.isolation`, in a module that a child process can import."""

from __future__ import annotations

import itertools
from typing import Any


def nothing(command: Any, context: Any) -> None: ...


def loop_in_c(command: Any, context: Any) -> None:
    sum(itertools.repeat(0))


def eat(command: Any, context: Any) -> None:
    """More than its memory limit."""
    kept = bytearray(1024**3)
    del kept
