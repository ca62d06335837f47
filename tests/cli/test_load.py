"""`load` and the behaviours of its commands."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from commandbus import CommandStatus
from commandbus.interfaces.cli import loading
from commandbus.interfaces.cli.behaviours import build_registry, registry
from commandbus.interfaces.cli.exits import CliError
from commandbus.interfaces.cli.mixing import BEHAVIOURS, parse_mix, shares, shuffled
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.cli.helpers import Cli


def test_the_mix_is_sent_exactly(cli: Cli, bus: SyncCommandBus) -> None:
    mix = "success=90,transient=5,permanent=2,business=2,slow=1"
    document = cli("load", "--count", "200", "--mix", mix, "--work", "5ms", "--json").document
    assert document["sent"] == 200
    assert document["mix"] == {
        "success": 180,
        "transient": 10,
        "permanent": 4,
        "business": 4,
        "slow": 2,
    }
    sent = bus.query_commands(domain="load", limit=1000)
    assert Counter(record.data["behaviour"] for record in sent) == document["mix"]
    assert {record.command_type for record in sent} == {"load"}
    assert {record.data["seconds"] for record in sent} == {0.005, 2.0}


def test_another_domain_may_be_named(cli: Cli, bus: SyncCommandBus) -> None:
    assert "sent 3 commands to trial" in cli("load", "trial", "-n", "3", "--mix", "success").err
    assert bus.stats("trial").ready == 3


def _here(fake: Callable[[float], None]) -> Callable[[float], None]:
    """A `sleep` for this thread; others, which look after something, go on sleeping."""
    here, sleep = threading.get_ident(), time.sleep
    return lambda seconds: (fake if threading.get_ident() == here else sleep)(seconds)


def test_a_rate_is_kept(cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(loading.time, "sleep", _here(slept.append))
    cli("load", "-n", "40", "--rate", "200")
    assert len(slept) == 4
    assert slept[-1] == pytest.approx(0.15, abs=0.1)


def test_what_was_sent_before_an_interrupt_is_reported(
    cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        if bus.stats("load").ready:
            raise KeyboardInterrupt

    monkeypatch.setattr(loading.time, "sleep", _here(interrupted))
    assert "sent 1 command " in cli("load", "-n", "5", "--rate", "1", code=1).err


def test_each_behaviour_ends_as_it_says(bus: SyncCommandBus) -> None:
    ids = {
        name: bus.send(
            "load", "load", {"behaviour": name}, max_attempts=1 if name == "exhausted" else 3
        )
        for name in [*BEHAVIOURS, "nonsense"]
    }
    # One delivery each, and another for the transient one, which comes back after half a second.
    SyncWorker(bus, "load", registry, recycle_after=len(ids) + 1).run()
    ended = {name: bus.wait(sent.command_id, 10) for name, sent in ids.items()}
    parked = CommandStatus.IN_TROUBLESHOOTING_QUEUE
    assert {name: record.status for name, record in ended.items()} == {
        "success": CommandStatus.COMPLETED,
        "slow": CommandStatus.COMPLETED,
        "transient": CommandStatus.COMPLETED,
        "exhausted": parked,
        "permanent": parked,
        "business": CommandStatus.FAILED,
        "crash": parked,
        "nonsense": parked,
    }
    assert ended["transient"].attempts == 2
    assert ended["crash"].error_code == "LOAD_CRASH"


def test_a_registry_may_serve_several_domains() -> None:
    assert build_registry(["a", "b", "a"]).registered_handlers() == [("a", "load"), ("b", "load")]


@pytest.mark.parametrize(
    ("given", "weights"),
    [
        ("success", {"success": 1}),
        ("success=90, crash=10", {"success": 90, "crash": 10}),
        ("slow=0.5,business=0,", {"slow": 0.5, "business": 0}),
    ],
)
def test_mixes(given: str, weights: dict[str, float]) -> None:
    assert parse_mix(given) == weights


@pytest.mark.parametrize(
    "given", ["", "nonsense=1", "success=x", "success=-1", "success=0", "slow,slow", "slow=nan", "=1"]
)
def test_what_is_no_mix(given: str, cli: Cli) -> None:
    with pytest.raises(CliError, match="--mix"):
        parse_mix(given)
    cli("load", "--mix", given, code=2)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1001])
def test_shares_add_up(count: int) -> None:
    numbers = shares({"success": 1, "slow": 1, "crash": 1}, count)
    assert sum(numbers.values()) == count
    assert max(numbers.values()) - min(numbers.values()) <= 1


def test_the_same_seed_gives_the_same_order() -> None:
    shuffle = partial(shuffled, {"success": 50, "slow": 50})
    assert shuffle(1) == shuffle(1)
    assert shuffle(1) != shuffle(2)
