"""`worker`: serves an app as a process, and does what signals say."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commandbus import CommandStatus, SendRequest
from commandbus.interfaces.cli import supervisor
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.signals import SUPERVISOR
from commandbus.interfaces.cli.supervision import Supervision
from commandbus.sync import SyncCommandBus
from commandbus.testing.waiting import eventually
from tests.cli.helpers import Cli
from tests.cli.serving import serving

APP = """
import asyncio, pathlib, signal, time
from commandbus import HandlerRegistry

registry = HandlerRegistry()

def begun(name):
    pathlib.Path(name).touch()

@registry.handler("shop", "Wait")
async def wait(command, context):
    begun("wait")
    await asyncio.sleep(command.data)
    return "waited"

@registry.handler("shop", "Block")
async def block(command, context):
    # As with a signal that arrives just before a long system call: this thread is not interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    begun("block")
    time.sleep(command.data)

@registry.handler("shop", "Stuck", timeout=0.5)
async def stuck(command, context):
    begun("stuck")
    time.sleep(command.data)

@registry.handler("shop", "Swallow", timeout=0.1)
async def swallow(command, context):
    begun("swallow")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue

@registry.handler("shop", "Endless", timeout=0.1)
def endless(command, context):
    begun("endless")
    while True:
        time.sleep(0.05)

@registry.handler("shop", "Long")
def long(command, context):
    begun("long")
    time.sleep(command.data)

@registry.handler("mail", "Send")
def send(command, context): ...
"""
STRICT = """
strict = HandlerRegistry()

@strict.handler("bank", "Pay", transactional=True)
def pay(command, context): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def wait_until_begun(folder: Path, name: str) -> None:
    deadline = time.monotonic() + 20
    while not (folder / name).exists():
        assert time.monotonic() < deadline, f"the handler {name!r} did not begin"
        time.sleep(0.01)


@pytest.mark.parametrize("options", [[], ["--threads"], ["--processes", "2"]], ids=str)
def test_the_first_signal_drains(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str]
) -> None:
    sent = bus.send("shop", "Wait", 0.7)
    with serving(folder, url, "shop", *options) as worker:
        worker.wait_for("serves mail, shop", times=2 if "--processes" in options else 1)
        wait_until_begun(folder, "wait")
        worker.signal()
        assert worker.process.wait(20) == 0
    record = bus.get_command(sent.command_id)
    assert record is not None
    assert record.status is CommandStatus.COMPLETED
    assert record.result == "waited"


@pytest.mark.parametrize("options", [[], ["--threads"]], ids=str)
def test_a_worker_drives_the_processes_of_its_registry(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str]
) -> None:
    with (folder / "shop.py").open("a") as file:
        file.write("from commandbus.processes import Chain\nregistry.process(Chain)\n")
    first, second = SendRequest("shop", "Wait", 0), SendRequest("mail", "Send")
    process_id = bus.chain(first, second).process_id
    with serving(folder, url, "shop", *options) as worker:
        record = bus.wait_process(process_id, timeout=20)
        worker.signal()
        assert worker.process.wait(20) == 0
    assert record.status == "COMPLETED"
    assert record.state["results"] == ["waited", None]


@pytest.mark.parametrize("options", [[], ["--threads"]], ids=str)
@pytest.mark.parametrize("name", ["Swallow", "Endless"])
def test_a_handler_that_cannot_be_stopped_does_not_keep_the_process(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str], name: str
) -> None:
    bus.send("shop", name, max_attempts=1)
    with serving(folder, url, "shop", *options) as worker:
        worker.wait_for("HANDLER_TIMEOUT")
        worker.signal()
        assert worker.process.wait(15) == 0


@pytest.mark.parametrize("options", [[], ["--threads"]], ids=str)
@pytest.mark.parametrize("name", ["Wait", "Long"])
def test_the_second_signal_gives_commands_back(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str], name: str
) -> None:
    sent = bus.send("shop", name, 60)
    with serving(folder, url, "shop", *options) as worker:
        wait_until_begun(folder, name.lower())
        worker.signal()
        worker.wait_for("draining")
        worker.signal()
        assert worker.process.wait(20) == 0
    record = bus.get_command(sent.command_id)
    assert record is not None
    assert (record.status, record.attempts, record.crashes) == (CommandStatus.PENDING, 0, 0)


def test_the_third_signal_aborts_even_a_blocked_loop(
    folder: Path, url: str, bus: SyncCommandBus
) -> None:
    bus.send("shop", "Block", 60)
    with serving(folder, url, "shop") as worker:
        wait_until_begun(folder, "block")
        for said in ("draining", "canceling"):
            worker.signal()
            worker.wait_for(said)
        worker.signal()
        assert worker.process.wait(20) == 1


STUCK = """
import signal, sys, time
from commandbus.interfaces.cli import signals

signals.ABORT_SECONDS = 0.2
signals.Signals(lambda timeout: print("asked", timeout, flush=True), 0.1)
signal.pthread_sigmask(signal.SIG_BLOCK, signals.HEARD)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_has_not_stopped_in_time_is_ended(number: int) -> None:
    """A patience of 0.1 s, a moment more, and then nothing is waited for."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        said, noted = process.communicate(timeout=20)
    assert process.returncode == 1
    assert said == "asked None\n"
    assert "draining" in noted
    assert "aborting: not stopped in time" in noted


STOPPED = """
import time
from commandbus.interfaces.cli import signals

signals.Signals(lambda timeout: print("asked", timeout, flush=True), 60).drain()
time.sleep(60)
"""


def test_a_signal_after_the_stop_of_an_operator_still_drains() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for patience in ("None", "None", "0.0"):
            assert process.stdout.readline() == f"asked {patience}\n"
            process.send_signal(signal.SIGTERM)
        _, noted = process.communicate(timeout=20)
    assert "an operator stops this worker" in noted


def test_processes_end_when_their_supervisor_is_killed(
    folder: Path, url: str, bus: SyncCommandBus
) -> None:
    with serving(folder, url, "shop", "--processes", "2") as worker:
        worker.wait_for("serves", times=2)
        worker.process.kill()
        worker.process.wait(20)
        worker.wait_for("has stopped", times=2)
    assert bus.stats("shop").running == 0


def pid_in(line: str) -> int:
    """Of a worker process that says that it serves."""
    return int(line.split()[2].split("-")[-2])


@pytest.mark.parametrize("options", [[], ["--threads"], ["--processes", "2"]], ids=str)
def test_a_killed_process_is_replaced(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str]
) -> None:
    with serving(folder, url, "shop", *options) as worker:
        first = worker.wait_for("serves", times=2 if "--processes" in options else 1)
        os.kill(pid_in(first), signal.SIGKILL)
        worker.wait_for("starting another")
        worker.wait_for("serves")
        worker.signal()
        assert worker.process.wait(20) == 0


@pytest.mark.parametrize("options", [[], ["--threads"]], ids=str)
def test_what_a_killed_process_held_goes_back_within_a_second(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str]
) -> None:
    """Its lease is of 30 s; what it ran counts a crash with its cause, what it only held does not."""
    first, *others = [bus.send("shop", "Long", 60).command_id for _ in range(4)]
    arguments = ("--concurrency", "1", "--set", "prefetch=3", *options)
    with serving(folder, url, "shop", *arguments) as worker:
        line = worker.wait_for("serves")
        wait_until_begun(folder, "long")
        eventually(lambda: bus.stats("shop").running == 4)
        os.kill(pid_in(line), signal.SIGKILL)
        killed_at = time.monotonic()
        worker.wait_for("is dead: 1 commands count a crash, 3 are released")
        assert time.monotonic() - killed_at < 1.5
    (lost,) = [e for e in bus.get_audit_trail(first) if e.event_type == "WORKER_LOST"]
    assert lost.details["error"]["message"] == (
        f"Its worker process {pid_in(line)} was killed by SIGKILL (crash 1 of 3)."
    )
    for command_id in others:
        kinds = [event.event_type for event in bus.get_audit_trail(command_id)]
        assert "RELEASED" in kinds
        assert "WORKER_LOST" not in kinds


def test_a_process_whose_loop_is_blocked_is_killed_after_the_timeout_of_its_handler(
    folder: Path, url: str, bus: SyncCommandBus
) -> None:
    sent = bus.send("shop", "Stuck", 120)
    with serving(folder, url, "shop") as worker:
        wait_until_begun(folder, "stuck")
        began = time.monotonic()
        worker.wait_for("longer than its timeout")
        assert time.monotonic() - began < 15
        worker.wait_for("1 commands count a crash")
    (lost,) = [e for e in bus.get_audit_trail(sent.command_id) if e.event_type == "WORKER_LOST"]
    assert "was killed by its supervisor: it let a handler run" in lost.details["error"]["message"]


@pytest.mark.parametrize("arguments", [["nowhere_at_all"], ["shop", "--domains", "nowhere"]], ids=str)
def test_an_error_of_the_worker_process_is_the_end_of_its_supervisor(
    folder: Path, url: str, arguments: list[str]
) -> None:
    with serving(folder, url, *arguments) as worker:
        assert worker.process.wait(20) == (3 if len(arguments) == 1 else 2)


def test_an_app_that_cannot_be_imported_is_not_tried_again_however_long_it_took(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "slow.py").write_text("raise RuntimeError('after a long import')")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(supervisor, "YOUNG_SECONDS", 0.0)
    starts: list[int] = []
    start = supervisor.Supervisor._start

    def counted(watching: supervisor.Supervisor, index: int) -> Any:
        starts.append(index)
        assert len(starts) == 1, "it was started again"
        return start(watching, index)

    monkeypatch.setattr(supervisor.Supervisor, "_start", counted)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        watching = supervisor.Supervisor(["slow"], url, Supervision("127.0.0.1", None, None, False), 1)
        assert watching.run() == Exit.NO_APP
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("code", [2, 3, 5])
def test_a_handler_that_ends_its_process_does_not_end_the_supervisor(
    folder: Path, url: str, bus: SyncCommandBus, code: int
) -> None:
    """Also with a code by which a new process says that another try is useless."""
    (folder / "quitting.py").write_text(
        "import os\nfrom commandbus import HandlerRegistry\n"
        "registry = HandlerRegistry('shop')\n"
        f"@registry.command\ndef quit() -> None: os._exit({code})\n"
        "@registry.command\ndef go_on() -> None: pass\n"
    )
    with serving(folder, url, "quitting", "--concurrency", "1") as worker:
        bus.send("shop", "quit", {})
        worker.wait_for(f"ended with {code}; starting another")
        assert bus.wait(bus.send("shop", "go_on", {}), 30).status == "COMPLETED"
        assert worker.process.poll() is None


def test_logs_as_json_are_a_document_a_line(folder: Path, url: str, bus: SyncCommandBus) -> None:
    sent = bus.send("shop", "Wait", "no number")
    with serving(folder, url, "shop", "--log-format", "json", "--probe-port", "0") as worker:
        said = [worker.wait_for("probes"), worker.wait_for("serves")]
        said.append(worker.wait_for("tried again later"))
        worker.signal()
        said += [worker.wait_for("draining"), worker.wait_for("has stopped")]
    documents = [json.loads(line) for line in said]
    failed = documents[2]
    assert (failed["command_id"], failed["domain"]) == (str(sent.command_id), "shop")
    assert (failed["attempt"], failed["code"]) == (1, "TypeError")


def test_only_the_domains_asked_for_are_served(folder: Path, url: str, bus: SyncCommandBus) -> None:
    with serving(folder, url, "shop", "--domains", "mail", "--concurrency", "2") as worker:
        assert "serves mail: 2 at once" in worker.wait_for("serves")
        worker.signal()
        assert worker.process.wait(20) == 0


@pytest.mark.parametrize("more", [(), ("--processes", "2")], ids=["one", "several"])
def test_any_setting_of_a_worker_can_be_set(folder: Path, url: str, more: tuple[str, ...]) -> None:
    with serving(folder, url, "shop", "--set", "concurrency=7", "-c", "2", *more) as worker:
        assert "7 at once" in worker.wait_for("at once")
        worker.signal()
        assert worker.process.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["worker", "nowhere_at_all"], 3, "no module"),
        (["worker"], 2, "Which app"),
        (["worker", "cliapp_worker", "--domains", "nowhere"], 2, "no handler for the domain"),
        (["worker", "cliapp_worker", "--url", "sqlite:////nowhere/at/all.db"], 4, "does not exist"),
        (["worker", "cliapp_worker", "--url", "memory://"], 2, "memory://"),
        (["worker", "cliapp_worker", "--concurrency", "0"], 2, "concurrency"),
        (["worker", "cliapp_worker", "--max-concurrency", "2"], 2, "is below --concurrency 4"),
        (["worker", "cliapp_worker", "--set", "prefetch"], 2, "--set needs NAME=VALUE"),
        (["worker", "cliapp_worker", "--set", "prefetch=few"], 2, "prefetch must be a whole number"),
        (["worker", "cliapp_worker", "--set", "jitter=soon"], 2, "jitter must be a duration"),
        (["worker", "cliapp_worker", "--set", "prefech=1"], 2, "no setting 'prefech', but prefetch"),
        (["worker", "cliapp_worker", "--set", "retry_policy=3"], 2, "retry_policy cannot be set here"),
        (["worker", "cliapp_worker:strict"], 2, "transactional"),
        (["worker", "cliapp_worker:strict", "--threads"], 2, "transactional"),
    ],
)
def test_what_cannot_be_served_says_why(
    cli: Cli, arguments: list[str], code: int, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("cliapp_worker.py").write_text(APP + STRICT)
    monkeypatch.setenv(SUPERVISOR, str(os.getppid()))  # as a worker process, whose errors are caught
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert complaint in cli(*arguments, code=code).err


def test_a_worker_follows_its_code(folder: Path, url: str, bus: SyncCommandBus) -> None:
    with serving(folder, url, "shop", "--reload") as worker:
        worker.wait_for("serves mail, shop")
        assert bus.wait(bus.send("shop", "Wait", 0).command_id, 20).result == "waited"
        (folder / "shop.py").write_text(APP.replace("waited", "waited no more"))
        worker.wait_for("shop.py changed: restarting the worker")
        worker.wait_for("serves mail, shop")
        assert bus.wait(bus.send("shop", "Wait", 0).command_id, 20).result == "waited no more"
        worker.signal()
        assert worker.process.wait(20) == 0
