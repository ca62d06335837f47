"""A worker with handlers in its main script; for test_isolation.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from commandbus import HandlerRegistry
from commandbus.sync import SyncCommandBus, SyncHandlerContext, SyncWorker

registry = HandlerRegistry("main")


@dataclass
class Order:
    number: int


@dataclass
class Receipt:
    order: Order
    pid: int


@registry.command(isolation="process")
def buy(order: Order) -> Receipt:
    return Receipt(order, os.getpid())


@registry.command(isolation="process")
def hang(context: SyncHandlerContext, path: str) -> None:
    started = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(f"{os.getpid()} {started.pid}")
    while True:
        time.sleep(0)


def run(url: str) -> None:
    with SyncCommandBus(url) as bus:
        SyncWorker(bus, registry, concurrency=2).run(signals=True)


if __name__ == "__main__" or "--unguarded" in sys.argv:
    run(sys.argv[1])
