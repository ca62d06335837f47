"""`queue`, `top` and `health`."""

from uuid import uuid4

import pytest

from commandbus import Schedule, SendRequest
from commandbus.interfaces.cli.top import Rates
from commandbus.store.records import QueueStats
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli, finish, park


@pytest.mark.parametrize("command", [["queue", "list"], ["top"], ["top", "--once"]])
def test_all_domains_with_their_figures(cli: Cli, bus: SyncCommandBus, command: list[str]) -> None:
    finish(bus)
    park(bus)
    bus.send("mail", "Send", delay=60)
    heading = cli(*command).out.splitlines()[0].split("\t")
    rows = {row[0]: dict(zip(heading, row, strict=True)) for row in cli(*command).rows}
    assert rows["shop"]["completed"] == "1"
    assert rows["shop"]["parked"] == "1"
    assert rows["mail"]["scheduled"] == "1"
    document = cli(*command, "--json").document
    assert [stats["domain"] for stats in document["domains"]] == ["mail", "shop"]


def test_the_table_fits_and_shows_a_pause(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    finish(bus)
    bus.pause("shop", "stocktaking")
    out = cli("queue", "list").out
    assert "shop paused" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "stocktaking" in cli("queue", "stats", "shop").err


def test_pause_and_resume(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("shop", "Buy")
    cli("queue", "pause", "shop", "--reason", "stocktaking")
    stats = cli("queue", "stats", "shop", "--json").document
    assert stats["paused"] is True
    assert stats["paused_reason"] == "stocktaking"
    cli("queue", "resume", "shop")
    assert cli("queue", "stats", "shop").rows[0][1] == "open"
    assert "was not paused" in cli("queue", "resume", "shop").err


@pytest.mark.parametrize("verb", ["stats", "resume", "purge"])
def test_an_unknown_domain_is_not_found(cli: Cli, bus: SyncCommandBus, verb: str) -> None:
    bus.send("shop", "Buy")
    assert "'nowhere'; there are shop" in cli("queue", verb, "nowhere", code=7).err
    assert (list(bus.list_domains()), list(bus.list_actions())) == (["shop"], [])


def test_purge_needs_a_confirmation(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("shop", "Buy")
    finish(bus, domain="mail")
    assert "1 live command" in cli("queue", "purge", "shop", "--dry-run").err
    assert "--yes" in cli("queue", "purge", "shop", code=2).err
    assert bus.stats("shop").ready == 1
    cli("queue", "purge", "shop", "--yes")
    assert list(bus.list_domains()) == ["mail"]


def test_health_is_good_until_a_limit_is_exceeded(cli: Cli, bus: SyncCommandBus) -> None:
    park(bus)
    bus.send("shop", "Buy")
    assert "healthy" in cli("health").err
    assert cli("health", "--json").document["healthy"] is True
    assert "waits" in cli("health", "--max-age", "0", code=6).err
    sick = cli("health", "--max-parked", "0", "--json", code=6).document
    assert sick["problems"] == ["1 command parked, more than 0"]


def test_health_of_a_store_that_is_not_there(cli: Cli) -> None:
    cli("health", code=4)
    assert cli("health", "--json", code=4).document["healthy"] is False


def test_why_says_what_a_command_waits_for(cli: Cli, bus: SyncCommandBus) -> None:
    sent = str(bus.send("shop", "Buy").command_id)
    bus.pause("shop", "stocktaking")
    assert "stocktaking" in cli("why", sent).out
    document = cli("why", sent, "--json").document
    assert document["status"] == "PENDING"
    assert document["reasons"]
    cli("why", str(uuid4()), code=7)


def test_why_says_what_a_process_waits_for(cli: Cli, bus: SyncCommandBus) -> None:
    process_id = str(bus.chain(SendRequest("shop", "Buy")).process_id)
    assert [row[0] for row in cli("why", process_id).rows] == ["NO_ROUTER", "STEP"]
    assert cli("why", process_id, "--json").document["status"] == "RUNNING"


def test_workers_are_listed(cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch) -> None:
    assert "no worker" in cli("workers").err
    assert cli("workers", "--json").document == {"workers": []}


def test_rates_compare_looks() -> None:
    def stats(completed: int) -> list[QueueStats]:
        return [QueueStats("shop", 0, 0, 0, 0, completed, 0, 0, None, False)]

    rates = Rates()
    rates.add(stats(10), now=1.0)
    assert rates.of("shop") is None
    rates.add(stats(30), now=3.0)
    assert rates.of("shop") == 10.0


def test_what_destroys_is_kept_with_who_and_why(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("shop", "Wait")
    bus.put_schedule(Schedule(name="nightly", domain="shop", command_type="Wait", cron="0 3 * * *"))
    by = ["--yes", "--operator", "olga", "--reason", "clean desk"]
    cli("queue", "purge", "shop", *by)
    cli("schedule", "delete", "nightly", *by)
    cli("db", "prune", "--completed", "7d", *by)
    told = [action for action in bus.list_actions() if action.actor == "olga"]
    assert [(action.action, action.subject) for action in told] == [
        ("delete_schedule", "nightly"),
        ("purge", "shop"),
    ], "the prune found nothing to forget"
    assert {action.reason for action in told} == {"clean desk"}


def test_a_domain_that_nothing_was_sent_to_is_paused_only_as_a_new_one(
    cli: Cli, bus: SyncCommandBus
) -> None:
    bus.send("shop", "Buy")
    assert "there are shop" in cli("queue", "pause", "shpo", code=7).err
    assert list(bus.list_domains()) == ["shop"]
    cli("queue", "pause", "mail", "--new")
    assert bus.stats("mail").paused
