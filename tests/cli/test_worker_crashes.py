"""`worker`: a command that ends its process is parked, one beside which processes are killed is not."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from uuid import UUID

import pytest

from commandbus import CommandStatus
from commandbus.domain.outcome import CRASHES_MAX
from commandbus.store.deaths import NOT_BLAMED
from commandbus.sync import SyncCommandBus
from commandbus.testing.waiting import eventually
from tests.cli.serving import Serving, serving

APP = """
import os, pathlib, signal, time
from commandbus import HandlerRegistry

registry = HandlerRegistry()

@registry.handler("shop", "Kill")
def kill(command, context):
    os.kill(os.getpid(), signal.SIGKILL)

@registry.handler("shop", "Fault")
def fault(command, context):
    os.kill(os.getpid(), signal.SIGSEGV)

@registry.handler("shop", "Slow")
def slow(command, context):
    pathlib.Path(f"slow-{os.getpid()}").touch()
    time.sleep(command.data)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "crashing_shop.py").write_text(APP)
    return tmp_path


def status_of(bus: SyncCommandBus, command_id: UUID) -> CommandStatus | None:
    record = bus.get_command(command_id)
    return None if record is None else record.status


def next_pid(worker: Serving) -> int:
    """The next process that begins to serve."""
    line = worker.wait_for("serves")
    return int(line.split(" serves ")[0].split("-")[-2])


@pytest.mark.parametrize(("kind", "name"), [("Kill", "SIGKILL"), ("Fault", "SIGSEGV")])
def test_a_killer_is_parked_after_its_third_run_with_its_cause(
    shop: Path, url: str, bus: SyncCommandBus, kind: str, name: str
) -> None:
    killer = bus.send("shop", kind).command_id
    with serving(shop, url, "crashing_shop"):
        eventually(lambda: status_of(bus, killer) is CommandStatus.IN_TROUBLESHOOTING_QUEUE, timeout=60)
    record = bus.get_command(killer)
    assert record is not None
    assert (record.attempts, record.crashes) == (CRASHES_MAX, CRASHES_MAX)
    assert record.error is not None
    assert f"was killed by {name}" in record.error.message


def test_a_harmless_command_is_not_parked_when_its_processes_are_killed(
    shop: Path, url: str, bus: SyncCommandBus
) -> None:
    harmless = bus.send("shop", "Slow", 3600).command_id
    with serving(shop, url, "crashing_shop") as worker:
        for _ in range(CRASHES_MAX):
            pid = next_pid(worker)
            eventually((shop / f"slow-{pid}").exists, timeout=60)
            os.kill(pid, signal.SIGKILL)
        worker.wait_for("is dead: 0 commands count a crash, 1 are released")
    events = bus.get_audit_trail(harmless)
    assert sum(event.event_type == "WORKER_LOST" for event in events) == CRASHES_MAX - 1
    (spared,) = [e.details["reason"] for e in events if NOT_BLAMED in str(e.details.get("reason"))]
    assert spared.endswith("was killed by SIGKILL")
    assert status_of(bus, harmless) is not CommandStatus.IN_TROUBLESHOOTING_QUEUE
