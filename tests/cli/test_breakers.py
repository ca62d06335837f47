"""`breaker`: look at circuit breakers, open and reset them by hand."""

import pytest

from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli


def test_open_and_reset_are_seen_in_the_list(cli: Cli, bus: SyncCommandBus) -> None:
    cli("breaker", "open", "visa", "--for", "10m", "--reason", "maintenance", "--operator", "ada")
    (row,) = cli("breaker", "list").rows
    assert row[:2] == ["visa", "OPEN"]
    assert row[2].endswith("Z")
    assert row[-2:] == ["ada", "maintenance"]
    cli("breaker", "reset", "visa", "--reason", "they called", "--operator", "bob")
    (breaker,) = cli("breaker", "list", "--json").document["breakers"]
    assert breaker["state"] == "CLOSED"
    assert (breaker["changed_by"], breaker["reason"]) == ("bob", "they called")


def test_the_time_is_kept(cli: Cli, bus: SyncCommandBus) -> None:
    cli("breaker", "open", "visa", "--for", "2h")
    breaker = bus.get_breaker("visa")
    assert breaker is not None
    assert breaker.open_until is not None
    assert (breaker.open_until - breaker.changed_at).total_seconds() == pytest.approx(7200)


def test_the_table_fits(cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch) -> None:
    assert "no breaker has ever opened" in cli("breaker", "list").err
    cli("breaker", "open", "visa", "--reason", "a long story " * 10)
    out = cli("breaker", "list").out
    assert "in 5 min" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_target_with_a_typing_error_is_not_reset(cli: Cli, bus: SyncCommandBus) -> None:
    assert "'vsia'" in cli("breaker", "reset", "vsia", code=7).err
    assert not bus.list_breakers()


@pytest.mark.parametrize("cooldown", ["0", "soon"])
def test_a_time_that_makes_no_sense_is_a_usage_error(
    cli: Cli, bus: SyncCommandBus, cooldown: str
) -> None:
    assert cooldown in cli("breaker", "open", "visa", "--for", cooldown, code=2).err
