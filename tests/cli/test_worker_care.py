"""`worker`: probes, signs of life, the watchdog and recycling; and the behaviours of `load`."""

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commandbus import CommandStatus, SendRequest
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.supervision import Supervision, sign_seconds
from commandbus.runtimes.probes import SignsOfLife
from commandbus.runtimes.watchdog import EXIT_CODE
from commandbus.sync import SyncCommandBus
from commandbus.testing.waiting import eventually
from tests.cli.helpers import Cli
from tests.cli.serving import serving

APP = """
import threading
from functools import partial
from commandbus import HandlerRegistry
from commandbus.runtimes import watchdog

registry = HandlerRegistry()
watchdog.WorkerWatchdog = partial(
    watchdog.WorkerWatchdog, check_interval=0.02, hold_off=0, restarts_max=0
)

@registry.handler("shop", "Buy")
def buy(command, context):
    return "bought"

@registry.handler("shop", "Hang", timeout=0.05)
def hang(command, context):
    threading.Event().wait(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What systemd listens on."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        channel.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        yield channel


def heard(channel: socket.socket, wanted: str) -> str:
    """The next message that is not another sign of life."""
    while (message := channel.recv(100).decode()) != wanted:
        assert message == "WATCHDOG=1"
    return message


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}{path}", timeout=10) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("options", [[], ["--threads"]], ids=str)
def test_probes_and_a_heartbeat(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str]
) -> None:
    care = ("--probe-port", "0", "--heartbeat-file", "beat")
    with serving(folder, url, "shop", *care, *options) as worker:
        address = worker.wait_for("probes at").split()[3].rstrip(":")
        worker.wait_for("serves")
        eventually((folder / "beat").exists)
        assert json.loads(get(address, "/readyz"))["ready"] is True
        assert json.loads(get(address, "/livez"))["live"] is True
        assert "commandbus_commands_settled_total" in get(address, "/metrics")
        worker.signal()
        assert worker.process.wait(20) == 0


def test_all_processes_answer_on_one_port_and_each_has_its_file(
    folder: Path, url: str, bus: SyncCommandBus
) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    care = ("--probe-port", address.rpartition(":")[2], "--heartbeat-file", "beat", "--processes", "2")
    with serving(folder, url, "shop", *care) as worker:
        worker.wait_for("serves", times=2)
        for index in (0, 1):
            eventually((folder / f"beat.{index}").exists)
        for path, key in (("/livez", "live"), ("/readyz", "ready"), ("/startupz", "started")):
            answer = json.loads(get(address, path))
            assert answer[key] is True
            assert [one[key] for one in answer["processes"]] == [True, True]
        page = get(address, "/metrics").splitlines()
        up = [line for line in page if line.startswith("commandbus_worker_up")]
        assert up == ['commandbus_worker_up{process="0"} 1', 'commandbus_worker_up{process="1"} 1']
        assert len([line for line in page if line.startswith("# TYPE commandbus_worker_up ")]) == 1
        worker.signal()
        assert worker.process.wait(20) == 0


@pytest.mark.parametrize("options", [[], ["--threads"]], ids=str)
def test_a_process_with_stuck_threads_is_replaced(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str]
) -> None:
    assert Exit.GAVE_UP == EXIT_CODE == 75
    bus.send_many([SendRequest("shop", "Hang") for _ in range(3)])
    with serving(folder, url, "shop", *options) as worker:
        worker.wait_for("stuck in handlers")
        worker.wait_for("has ended; starting another")
        worker.wait_for("serves")


def test_without_the_watchdog_a_critical_worker_goes_on(
    folder: Path, url: str, bus: SyncCommandBus
) -> None:
    bus.send_many([SendRequest("shop", "Hang", max_attempts=1) for _ in range(4)])
    with serving(folder, url, "shop", "--no-watchdog", "--threads") as worker:
        eventually(lambda: bus.stats("shop").parked == 4, timeout=20)
        sent = bus.send("shop", "Buy")
        assert bus.wait(sent.command_id, 20).result == "bought"
        worker.signal()
        assert worker.process.wait(20) == 0


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=str)
def test_a_recycled_process_is_replaced(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str]
) -> None:
    bus.send_many([SendRequest("shop", "Buy") for _ in range(5)])
    with serving(folder, url, "shop", "--recycle-after", "2", *options) as worker:
        worker.wait_for("has ended; starting another")
        eventually(lambda: bus.stats("shop").completed == 5, timeout=20)
        worker.signal()
        assert worker.process.wait(20) == 0


@pytest.mark.parametrize(
    "options", [["--until-idle"], ["--until-idle=100ms", "--processes", "2"]], ids=str
)
def test_a_worker_that_runs_until_idle_ends_and_is_not_replaced(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str]
) -> None:
    bus.send_many([SendRequest("shop", "Buy") for _ in range(5)])
    with serving(folder, url, "shop", *options) as worker:
        assert worker.process.wait(20) == 0
    assert bus.stats("shop").completed == 5


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=str)
def test_systemd_is_notified(
    folder: Path, url: str, bus: SyncCommandBus, systemd: socket.socket, options: list[str]
) -> None:
    with serving(folder, url, "shop", *options) as worker:
        assert heard(systemd, "READY=1")
        assert systemd.recv(100) == b"WATCHDOG=1"
        worker.wait_for("serves", times=2 if options else 1)
        worker.signal()
        assert heard(systemd, "STOPPING=1")
        assert worker.process.wait(20) == 0


def test_signs_are_given_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    assert sign_seconds() == 5.0
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    assert sign_seconds() == 1.5
    monkeypatch.setenv("WATCHDOG_USEC", "nonsense")
    assert sign_seconds() == 5.0


class Alive:
    def ping(self, timeout: float) -> bool:
        return True


def test_a_heartbeat_that_cannot_be_written_does_not_silence_systemd(
    systemd: socket.socket, tmp_path: Path
) -> None:
    with SignsOfLife(Alive(), file=tmp_path / "gone" / "beat", interval=0.01):  # type: ignore[arg-type]
        assert heard(systemd, "READY=1")
        assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3


def test_a_crash_costs_a_process_and_nothing_else(folder: Path, url: str, bus: SyncCommandBus) -> None:
    with serving(folder, url, "--load", "--processes", "2") as worker:
        worker.wait_for("serves load", times=2)
        bus.send("load", "load", {"behaviour": "crash"})
        assert "ended with 70" in worker.wait_for("starting another")
        sent = bus.send("load", "load", {"behaviour": "success"})
        assert bus.wait(sent.command_id, 20).status is CommandStatus.COMPLETED
        worker.signal()
        assert worker.process.wait(20) == 0


def test_the_behaviours_are_an_app_too(folder: Path, url: str, bus: SyncCommandBus) -> None:
    with serving(folder, url, "commandbus.interfaces.cli.behaviours:registry") as worker:
        sent = bus.send("load", "load", {"behaviour": "success", "number": 4})
        assert bus.wait(sent.command_id, 20).result == {"number": 4, "attempt": 1}
        worker.signal()
        assert worker.process.wait(20) == 0


def test_load_in_other_domains(folder: Path, url: str, bus: SyncCommandBus) -> None:
    with serving(folder, url, "--load", "--domains", "a,b") as worker:
        worker.wait_for("serves a, b")
        worker.signal()
        assert worker.process.wait(20) == 0


def test_arguments_of_each_process(tmp_path: Path) -> None:
    care = Supervision("0.0.0.0", 8000, tmp_path / "beat", watchdog=False)
    assert care.of_process(2, 3) == [
        "--no-watchdog",
        *("--probe-host", "127.0.0.1", "--probe-port", "0"),
        *("--heartbeat-file", str(tmp_path / "beat.2")),
    ]
    assert Supervision("0.0.0.0", None, None, watchdog=True).of_process(2, 3) == ["--watchdog"]
    assert care.of_process(0, 1)[-1] == str(tmp_path / "beat")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--probe-port", "65536"], "65535"),
        (["--heartbeat-file", "nowhere/beat"], "no folder"),
        (["--recycle-after", "0"], "recycle-after"),
        (["--until-idle=soon"], "until-idle"),
        (["--until-idle", "--reload"], "not both"),
        (["shop"], "not both"),
    ],
)
def test_what_cannot_work_is_a_usage_error(
    cli: Cli, bus: SyncCommandBus, arguments: list[str], complaint: str
) -> None:
    assert complaint in cli("worker", "--load", *arguments, code=2).err


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=str)
def test_a_port_in_use_is_reported_in_one_line(
    folder: Path, url: str, bus: SyncCommandBus, options: list[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with serving(folder, url, "--load", "--probe-port", port, *options) as worker:
            assert "already in use" in worker.wait_for("Probes cannot be served")
            assert worker.process.wait(20) == 2
