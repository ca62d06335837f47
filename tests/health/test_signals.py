"""Signals in a program of one's own: the first drains, the second cancels."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commandbus import CommandStatus, HandlerRegistry, InvalidOperationError
from commandbus.sync import SyncCommandBus, SyncWorker

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing can send SIGTERM there")

COMMON = """
import asyncio, signal, sys, time
from commandbus import CommandBus, HandlerRegistry, Worker
from commandbus.sync import SyncCommandBus, SyncWorker

registry = HandlerRegistry()

@registry.lifespan
def spanned():
    yield
    print("lifespan stopped", flush=True)

@registry.handler("orders", "ship")
async def ship(command, context):
    print("began", flush=True)
    await asyncio.sleep(command.data)
    return "done"
"""
PROGRAMS = {
    "threads": COMMON
    + """
with SyncCommandBus(sys.argv[1]) as bus:
    SyncWorker(bus, "orders", registry).run(signals=True)
print("ended", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
""",
    "asyncio": COMMON
    + """
async def main():
    async with CommandBus(sys.argv[1]) as bus:
        await Worker(bus, "orders", registry).run(signals=True)

asyncio.run(main())
print("ended", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
""",
}


@contextmanager
def program(runtime: str, url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAMS[runtime], url], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_handlers_finish(tmp_path: Path, runtime: str, number: int) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with SyncCommandBus(url) as bus, program(runtime, url) as process:
        command_id = bus.send("orders", "ship", 0.5).command_id
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(number)
        rest, _ = process.communicate(timeout=30)
        record = bus.wait(command_id, timeout=30)
    assert rest.splitlines() == ["lifespan stopped", "ended True"]
    assert process.returncode == 0
    assert (record.status, record.result) == (CommandStatus.COMPLETED, "done")


@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_the_second_signal_gives_commands_back(tmp_path: Path, runtime: str) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with SyncCommandBus(url) as bus, program(runtime, url) as process:
        command_id = bus.send("orders", "ship", 3600).command_id
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
        record = bus.get_command(command_id)
    assert rest.splitlines() == ["lifespan stopped", "ended True"]
    assert record is not None
    assert (record.status, record.crashes) == (CommandStatus.PENDING, 0)


def test_another_thread_gets_an_error_that_signals_are_not_its_own(tmp_path: Path) -> None:
    registry, raised = HandlerRegistry(), list[BaseException]()
    registry.register("orders", "ship", lambda command, context: None)

    def run() -> None:
        try:
            SyncWorker(bus, "orders", registry).run(signals=True)
        except InvalidOperationError as error:
            raised.append(error)

    with SyncCommandBus("memory://") as bus:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(30)
    assert "main thread only" in str(raised[0])
