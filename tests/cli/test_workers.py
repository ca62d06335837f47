"""`workers`: which there are, and what operators ask of them."""

from pathlib import Path

import msgspec
import pytest

from commandbus import HandlerRegistry
from commandbus.domain.presence import WorkerInfo
from commandbus.operations.presence import report_worker
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.waiting import eventually
from tests.cli.helpers import Cli
from tests.cli.serving import serving

APP = """
from commandbus import HandlerRegistry
registry = HandlerRegistry()

@registry.handler("shop", "Buy")
def buy(command, context):
    return "bought"
"""


@pytest.fixture
def worker(bus: SyncCommandBus) -> WorkerInfo:
    """A worker that lives by its word."""
    made = SyncWorker(bus, "shop", HandlerRegistry(), name="till", concurrency=4)
    info: WorkerInfo = msgspec.structs.replace(made._presence("threads"), concurrency_max=9)
    bus.session.run(report_worker(bus.scope, info, 0))
    return info


def test_the_list_shows_state_and_slots_and_who_asked(
    cli: Cli, bus: SyncCommandBus, worker: WorkerInfo
) -> None:
    assert cli("workers").rows[0][:3] == [worker.name, "RUNNING", "threads"]
    short = worker.name[-8:]
    done = cli("workers", "quiet", short, "--reason", "a look", "--operator", "ada")
    assert f"1 worker asked to be quiet: {worker.name}" in done.err
    assert cli("workers", "list").rows[0][1] == "asked: quiet by ada"
    (found,) = cli("workers", "--json").document["workers"]
    assert found["requested"]["quiet"]["reason"] == "a look"
    cli("workers", "resume", "--domain", "shop")
    assert cli("workers").rows[0][1] == "RUNNING"
    done = cli("workers", "concurrency", "7", "till", "--json")
    assert done.document == {"done": f"1 worker asked to run 7 at once: {worker.name}"}
    assert [one.action for one in bus.list_actions()] == [
        "resize_worker",
        "resume_worker",
        "quiet_worker",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("quiet",), 2, "Say which workers"),
        (("quiet", "nobody"), 7, "There is no worker 'nobody'"),
        (("stop", "till"), 2, "--yes"),
        (("concurrency", "10", "till"), 2, "pool_size=9"),
        (("concurrency", "0", "till"), 2, "between 1 and"),
        (("queit", "till"), 2, "there are list, quiet, resume, stop, concurrency"),
    ],
)
def test_bad_input_is_refused_with_advice(
    cli: Cli, worker: WorkerInfo, arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert said in cli("workers", *arguments, code=code).err


def test_a_stopped_worker_is_not_started_again(
    cli: Cli, tmp_path: Path, url: str, bus: SyncCommandBus
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with serving(tmp_path, url, "shop", "--processes", "2") as process:
        one, other = eventually(lambda: len(w := bus.list_workers()) == 2 and w, timeout=20)
        cli("workers", "stop", one.name, "--yes")
        process.wait_for("an operator stopped it")
        assert [left.name for left in bus.list_workers()] == [other.name]
        sent = bus.send("shop", "Buy")
        assert bus.wait(sent, timeout=20).result == "bought"
        cli("workers", "stop", "--domain", "shop", "--yes")
        assert process.process.wait(20) == 0
    assert not bus.list_workers()
