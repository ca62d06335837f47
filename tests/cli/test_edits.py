"""`reschedule`, `reprioritise` and `resend`."""

from __future__ import annotations

from pathlib import Path

from commandbus import CommandStatus
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli, finish, park


def test_reschedule_by_id_with_operator_and_reason(cli: Cli, bus: SyncCommandBus) -> None:
    sent = str(bus.send("shop", "Buy").command_id)
    by = ("--operator", "olga", "--reason", "stocktaking")
    assert "1 command rescheduled" in cli("reschedule", sent, "--delay", "2h", *by).err
    (record,) = bus.query_commands(domain="shop")
    assert (record.due_at - record.created_at).total_seconds() > 7000
    (event,) = [e for e in bus.get_audit_trail(sent) if e.details.get("actor") == "olga"]
    assert event.details["reason"] == "stocktaking"


def test_a_dry_run_counts_and_changes_nothing(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("shop", "Buy")
    ran = cli("reschedule", "--all", "-d", "shop", "--delay", "1h", "--dry-run", "--json")
    assert (ran.document["would"], ran.document["matched"]) == ("reschedule", 1)
    assert len(ran.document["examples"]) == 1
    assert bus.stats("shop").ready == 1


def test_reprioritise_all_that_match(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("shop", "Buy")
    bus.send("shop", "Sell")
    ran = cli("reprioritise", "--all", "-t", "Buy", "-p", "high", "--yes", "--json")
    assert (ran.document["done"], ran.document["refused"]) == (1, 0)
    found = {record.command_type: record.priority for record in bus.query_commands(domain="shop")}
    assert found == {"Buy": 0, "Sell": 5}


def test_what_does_not_wait_is_refused(cli: Cli, bus: SyncCommandBus) -> None:
    parked = park(bus)
    ran = cli("reschedule", parked, "--delay", "1h", "--json", code=1)
    assert (ran.document["done"], ran.document["refused"]) == (0, 1)
    assert "IN_TROUBLESHOOTING_QUEUE" in ran.err


def test_resend_as_it_was_or_edited(cli: Cli, bus: SyncCommandBus) -> None:
    ended = finish(bus)
    for more, data in (((), None), (("--data", '{"n": 2}'), {"n": 2})):
        ran = cli("resend", ended, *more, "--json")
        (sent,) = ran.document["answers"]
        (record,) = [r for r in bus.query_commands() if str(r.command_id) == sent["command_id"]]
        assert (str(record.causation_id), record.status) == (ended, CommandStatus.PENDING)
        assert data is None or record.data == data


def test_resend_all_of_a_status(cli: Cli, bus: SyncCommandBus) -> None:
    finish(bus)
    dry = cli("resend", "--all", "--status", "completed", "-d", "shop", "--dry-run")
    assert "would resend 1 command" in dry.err
    assert (
        "1 command sent again"
        in cli("resend", "--all", "--status", "completed", "-d", "shop", "--yes").err
    )


def test_unclear_orders_are_refused(cli: Cli, bus: SyncCommandBus) -> None:
    sent = str(bus.send("shop", "Buy").command_id)
    assert "either due_at or delay" in cli("reschedule", sent, code=2).err
    assert "moment" in cli("reschedule", sent, "--at", "noon", code=2).err
    assert "not both" in cli("reprioritise", code=2).err
    assert "--all needs" in cli("reprioritise", "--all", code=2).err
    assert "exactly one ID" in cli("resend", "--all", "-d", "shop", "--data", "1", code=2).err


def test_a_filter_of_the_list_chooses_commands(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("shop", "Buy", {"account": 42})
    bus.send("shop", "Buy", {"account": 43})
    ran = cli("reprioritise", "--all", "--filter", "data.account:42", "-p", "low", "--yes", "--json")
    assert (ran.document["matched"], ran.document["done"]) == (1, 1)
    found = {record.data["account"]: record.priority for record in bus.query_commands()}
    assert found == {42: 10, 43: 5}


def test_an_edited_payload_of_a_resend_is_checked_with_an_app(cli: Cli, bus: SyncCommandBus) -> None:
    Path("shop.py").write_text(
        "from commandbus import Command, HandlerRegistry\n"
        "registry = HandlerRegistry()\n"
        "@registry.handler('shop', 'Buy')\n"
        "def buy(command: Command[dict[str, int]], context): ...\n"
    )
    refused = cli("resend", finish(bus), "--data", '{"n": "x"}', "--app", "shop", code=2)
    assert "does not fit" in refused.err
