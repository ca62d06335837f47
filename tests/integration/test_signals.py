"""`stop()` in a signal handler of the thread that runs a worker or a router, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commandbus import CommandStatus
from commandbus.sync import SyncCommandBus

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

PATIENCE = 15.0

# Says "ready" when it serves, "begun" in a handler, which ends when a line is read, and "heard" when
# stop() has returned to the signal handler.
PROGRAM = """
import os, signal, sys, threading
from commandbus import HandlerRegistry
from commandbus.processes import Process, step
from commandbus.sync import SyncCommandBus, SyncProcessReplyRouter, SyncWorker

url, kind, *patience = sys.argv[1:]
registry = HandlerRegistry()


class Shop(Process):
    @step
    def order(self):
        return self.command("orders", "ship")


@registry.handler("orders", "ship")
def ship(command, context):
    print("begun", flush=True)
    return sys.stdin.readline().strip()


with SyncCommandBus(url) as bus:
    if kind == "router":
        served = SyncProcessReplyRouter(bus, Shop, concurrency=2)
    else:
        served = SyncWorker(bus, "orders", registry, shutdown_timeout=3_600)
    waits = [None if one == "default" else float(one) for one in patience]

    def stop(number, frame):
        served.stop(waits.pop(0))
        os.write(1, b"heard\\n")

    signal.signal(signal.SIGTERM, stop)
    ready = threading.Timer(0, lambda: print("ready", flush=True))
    ready.start()
    served.run()
    print("ended", flush=True)
"""

# Signals at every moment of many short runs, those before `run()` begins included.
STORM = """
import os, random, signal, sys, threading
from commandbus import HandlerRegistry
from commandbus.processes import Process, step
from commandbus.sync import SyncCommandBus, SyncProcessReplyRouter, SyncWorker

kind = sys.argv[1]
registry, chance = HandlerRegistry(), random.Random(7)
registry.register("orders", "ship", lambda command, context: None)


class Shop(Process):
    @step
    def order(self):
        return self.command("orders", "ship")


with SyncCommandBus("memory://") as bus:
    for _ in range(60):
        if kind == "router":
            served = SyncProcessReplyRouter(bus, Shop)
        else:
            served = SyncWorker(bus, "orders", registry)
        signal.signal(signal.SIGTERM, lambda *_: served.stop())
        bus.send("orders", "ship")
        delay = chance.random() * 0.01
        sender = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGTERM))
        sender.start()
        served.run()
        sender.join(30)
print("ended", flush=True)
"""


@contextmanager
def program(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # One that says nothing more ends, so that a read does.
    guard = threading.Timer(3 * PATIENCE, child.kill)
    guard.daemon = True
    guard.start()
    try:
        yield child
    finally:
        guard.cancel()
        child.kill()
        child.communicate(timeout=PATIENCE)


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("kind", ["worker", "router"])
@pytest.mark.parametrize("patience", ["default", "0"])
def test_a_signal_handler_in_the_main_thread_stops_it(kind: str, patience: str, tmp_path: Path) -> None:
    with program(PROGRAM, f"sqlite:///{tmp_path}/bus.db", kind, patience) as child:
        assert line_of(child) == "ready"
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 0
        assert [line_of(child), line_of(child)] == ["heard", "ended"]


def test_the_running_handler_finishes_after_the_signal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bus.db"
    with SyncCommandBus(url) as bus, program(PROGRAM, url, "worker", "default") as child:
        command_id = bus.send("orders", "ship").command_id
        assert {line_of(child), line_of(child)} == {"ready", "begun"}
        child.send_signal(signal.SIGTERM)
        assert child.stdin is not None
        print("done", file=child.stdin, flush=True)
        assert child.wait(PATIENCE) == 0
        record = bus.get_command(command_id)
    assert record is not None
    assert (record.status, record.result) == (CommandStatus.COMPLETED, "done")


def test_a_second_signal_may_have_less_patience(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bus.db"
    with SyncCommandBus(url) as bus, program(PROGRAM, url, "worker", "default", "0") as child:
        command_id = bus.send("orders", "ship").command_id
        assert {line_of(child), line_of(child)} == {"ready", "begun"}
        for _ in range(2):
            child.send_signal(signal.SIGTERM)
            assert line_of(child) == "heard"
        assert line_of(child) == "ended"
        record = bus.get_command(command_id)
    assert record is not None
    assert (record.status, record.attempts, record.crashes) == (CommandStatus.PENDING, 0, 0)


@pytest.mark.parametrize("kind", ["worker", "router"])
def test_no_moment_is_wrong_for_the_signal(kind: str) -> None:
    with program(STORM, kind) as child:
        assert child.wait(3 * PATIENCE) == 0
        assert line_of(child) == "ended"
