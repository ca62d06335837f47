"""`bench`: figures of one's own store, and nothing left behind."""

import pytest

from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli

FEW = ("bench", "-n", "200", "--seconds", "0.1", "--senders", "2")


@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_every_figure_is_measured(cli: Cli, bus: SyncCommandBus, runtime: str) -> None:
    document = cli(*FEW, "--runtime", runtime, "--json").document
    assert list(document["figures"]) == [
        "bulk send",
        "drain",
        "single sends, 1",
        "single sends, 2",
        "pick-up, median",
        "pick-up, one of ten above",
    ]
    assert all(value > 0 for value in document["figures"].values())


def test_other_domains_are_not_touched_and_nothing_stays(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("orders", "Ship", {"order": 1})
    shown = cli(*FEW).out
    assert "drain" in shown
    assert "commands/s" in shown
    left = bus.query_commands(limit=10)
    assert [record.domain for record in left] == ["orders"]


def test_a_count_that_is_no_measurement_is_refused(cli: Cli) -> None:
    assert "--count" in cli("bench", "-n", "5", code=2).err
