"""`tsq`: look at parked commands, and act on them one by one or in bulk."""

import os
import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer

from commandbus import CommandStatus, PermanentCommandError, SendRequest
from commandbus.interfaces.cli import output
from commandbus.operations import bulk_troubleshooting
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.cli.helpers import Cli, finish, park, run_on_terminal


def status_of(bus: SyncCommandBus, command_id: str) -> CommandStatus:
    record = bus.get_command(command_id)
    assert record is not None
    return record.status


def test_list_and_count_see_the_same(cli: Cli, bus: SyncCommandBus) -> None:
    parked = [park(bus), park(bus, "Sell")]
    finish(bus)
    assert [row[0] for row in cli("tsq", "list").rows] == parked[::-1]
    assert cli("tsq", "count").out == "2\n"
    assert cli("tsq", "count", "--type", "Sell", "--json").document == {"count": 1}
    assert [row[2] for row in cli("tsq", "list", "--type", "Sell").rows] == ["Sell"]


def test_groups_count_by_error(cli: Cli, bus: SyncCommandBus) -> None:
    for code in ("A", "B", "B"):
        newest = park(bus, code=code, message=f"because {code}")
    rows = cli("tsq", "list", "--groups").rows
    assert [[row[0], *row[2:5], row[-1]] for row in rows] == [
        ["2", "shop", "Buy", "B", "because B"],
        ["1", "shop", "Buy", "A", "because A"],
    ]
    group = cli("tsq", "list", "-g", "--json").document["groups"][0]
    assert (group["error_code"], group["count"], group["example"]) == ("B", 2, newest)
    assert [row[4] for row in cli("tsq", "list", "-g", "--code", "A").rows] == ["A"]


def test_all_of_a_group(cli: Cli, bus: SyncCommandBus) -> None:
    chosen, other = park(bus, code="A"), park(bus, code="B")
    group = next(row[1] for row in cli("tsq", "list", "--groups").rows if row[4] == "A")
    cli("tsq", "complete", "--all", "--group", group, "--result", "7", "--yes")
    record = bus.get_command(chosen)
    assert record is not None
    assert (record.status, record.result) == (CommandStatus.COMPLETED, 7)
    assert status_of(bus, other) is CommandStatus.IN_TROUBLESHOOTING_QUEUE


def test_all_reaches_every_domain(cli: Cli, bus: SyncCommandBus) -> None:
    park(bus)
    park(bus, domain="mail")
    assert "2 commands canceled" in cli("tsq", "cancel", "--all", "--yes", "--operator", "ada").err
    assert cli("tsq", "count").out == "0\n"


def test_the_group_table_fits(cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch) -> None:
    park(bus, message="a long story " * 10)
    ran = cli("tsq", "list", "--groups")
    assert "--group" in ran.err
    assert all(len(line) <= 80 for line in ran.out.splitlines())


def test_a_long_bulk_shows_its_progress(bus: SyncCommandBus, url: str, tmp_path: Path) -> None:
    worker = SyncWorker(bus, "shop")
    bus.send_many([SendRequest("shop", "Buy") for _ in range(60)])
    for received in worker.receive(60):
        worker.fail(received, PermanentCommandError("BROKEN", "it is broken"))
    ran = run_on_terminal("tsq", "retry", "--all", "-y", "--url", url, folder=tmp_path, columns=80)
    assert ran.code == 0
    assert "60/60" in ran.out
    assert "60 commands sent back to work" in ran.out
    assert bus.stats("shop").ready == 60


def test_list_by_code(cli: Cli, bus: SyncCommandBus) -> None:
    park(bus, code="A")
    wanted = park(bus, code="B")
    document = cli("tsq", "list", "--code", "B", "--json").document
    assert [command["command_id"] for command in document["commands"]] == [wanted]
    park(bus, code="B")
    assert "a larger --limit" in cli("tsq", "list", "--code", "B", "-n", "1").err
    assert cli("tsq", "list", "--code", "B", "-n", "2").err == ""
    assert "--after does not go" in cli("tsq", "list", "--code", "B", "--after", "1", code=2).err


def test_conditions_hold_before_the_limit_does(cli: Cli, bus: SyncCommandBus) -> None:
    one, other = park(bus, code="A"), park(bus, code="B")
    for parked in (one, other):
        cli("tsq", "assign", parked, "ben")
    for parked, code in ((one, "A"), (other, "B")):
        rows = cli("tsq", "list", "--assignee", "ben", "--code", code, "-n", "1").rows
        assert [row[0] for row in rows] == [parked]


def test_show_is_the_command_with_its_error(cli: Cli, bus: SyncCommandBus) -> None:
    assert "BROKEN: it is broken" in cli("tsq", "show", park(bus)).out


def test_retry_with_a_corrected_payload(cli: Cli, bus: SyncCommandBus) -> None:
    parked = park(bus, data={"amount": -1})
    cli("tsq", "retry", parked, "--data", '{"amount": 1}', "--reason", "typo", "--operator", "ada")
    record = bus.get_command(parked)
    assert record is not None
    assert record.status is CommandStatus.PENDING
    assert record.data == {"amount": 1}
    event = next(e for e in bus.get_audit_trail(parked) if e.event_type == "OPERATOR_RETRY")
    assert event.details["actor"] == "ada"
    assert event.details["reason"] == "typo"
    assert event.details["original_data"] == {"amount": -1}


def test_a_corrected_payload_must_fit_the_handler_of_an_app(cli: Cli, bus: SyncCommandBus) -> None:
    Path("shop.py").write_text(
        "from commandbus import Command, HandlerRegistry\n"
        "registry = HandlerRegistry()\n"
        "@registry.handler('shop', 'Buy')\n"
        "def buy(command: Command[dict[str, int]], context): ...\n"
    )
    parked = park(bus, data={"amount": "x"})
    refused = cli("tsq", "retry", parked, "--data", '{"amount": "y"}', "--app", "shop", code=None)
    assert refused.code != 0
    assert "does not fit" in refused.err
    assert status_of(bus, parked) is CommandStatus.IN_TROUBLESHOOTING_QUEUE
    cli("tsq", "retry", parked, "--data", '{"amount": 1}', "--app", "shop")
    assert status_of(bus, parked) is CommandStatus.PENDING


def test_cancel_and_complete(cli: Cli, bus: SyncCommandBus) -> None:
    one, two = park(bus), park(bus)
    cli("tsq", "cancel", one, "--reason", "obsolete")
    cli("tsq", "complete", two, "--result", '{"by": "hand"}')
    assert status_of(bus, one) is CommandStatus.CANCELED
    record = bus.get_command(two)
    assert record is not None
    assert record.status is CommandStatus.COMPLETED
    assert record.result == {"by": "hand"}


def test_a_list_shows_the_message_and_no_empty_columns(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    parked = park(bus, message="no such city")
    for columns in ("80", "100"):
        terminal.setenv("COLUMNS", columns)
        heading, row = cli("tsq", "list").out.splitlines()
        assert "no such" in row
        assert "ASSIGNEE" not in heading
        assert "COMMENT" not in heading
    cli("tsq", "assign", parked, "ben")
    assert "ASSIGNEE" in cli("tsq", "list").out


def test_comments_and_assignments_are_shown(cli: Cli, bus: SyncCommandBus) -> None:
    parked, other = park(bus), park(bus)
    cli("tsq", "comment", parked, "asked the bank", "--operator", "ann")
    cli("tsq", "assign", parked, "ben", "--operator", "ann")
    listed = {row[0]: row[-3:] for row in cli("tsq", "list").rows}
    assert listed == {parked: ["ben", "", "asked the bank"], other: ["", "", ""]}
    assert [row[0] for row in cli("tsq", "list", "--assignee", "ben").rows] == [parked]
    shown = cli("tsq", "show", parked).out
    assert "asked the bank" in shown
    assert "assignee    ben" in shown
    assert cli("show", parked, "--json").document["case"]["assignee"] == "ben"
    cli("tsq", "unassign", parked, "--reason", "on holiday", "--operator", "ann")
    assert cli("tsq", "list", "--assignee", "ben").rows == []
    assert bus.get_audit_trail(parked)[-1].details == {
        "actor": "ann", "assignee": None, "reason": "on holiday",
    }  # fmt: skip
    assert "NAME" in cli("tsq", "assign", parked, code=2).err


def test_several_ids_are_acted_on_and_refusals_are_reported(cli: Cli, bus: SyncCommandBus) -> None:
    parked, done = park(bus), finish(bus)
    ran = cli("tsq", "retry", done, parked, code=1)
    assert done in ran.err
    assert "1 command sent back" in ran.err
    assert status_of(bus, parked) is CommandStatus.PENDING


def test_all_needs_yes_without_a_terminal(cli: Cli, bus: SyncCommandBus) -> None:
    parked = park(bus)
    assert "--yes" in cli("tsq", "retry", "--all", code=2).err
    assert status_of(bus, parked) is CommandStatus.IN_TROUBLESHOOTING_QUEUE
    cli("tsq", "retry", "--all", "--yes")
    assert status_of(bus, parked) is CommandStatus.PENDING


@pytest.mark.parametrize(("answer", "code", "left"), [(False, 1, 1), (True, 0, 0)])
def test_all_asks_on_a_terminal(
    cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int, left: int
) -> None:
    park(bus)
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda question, **options: answer)
    cli("tsq", "cancel", "--all", code=code)
    assert cli("tsq", "count").out == f"{left}\n"


def test_all_acts_on_what_the_filters_choose(cli: Cli, bus: SyncCommandBus) -> None:
    chosen = [park(bus, code="A"), park(bus, code="A")]
    others = [park(bus, code="B"), park(bus, "Sell", code="A")]
    preview = cli("tsq", "cancel", "--all", "--code", "A", "--type", "Buy", "--dry-run")
    assert "would cancel 2 parked commands" in preview.err
    assert [[row[0], *row[2:5]] for row in preview.rows] == [["2", "shop", "Buy", "A"]]
    cli("tsq", "cancel", "--all", "--code", "A", "--type", "Buy", "--yes")
    assert {status_of(bus, one) for one in chosen} == {CommandStatus.CANCELED}
    assert {status_of(bus, one) for one in others} == {CommandStatus.IN_TROUBLESHOOTING_QUEUE}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["retry"], "--all"),
        (["retry", str(uuid4()), "--all"], "not both"),
        (["retry", "--all", "--data", "1"], "exactly one ID"),
        (["complete", str(uuid4()), "--result", "{"], "not JSON"),
    ],
)
def test_unclear_orders_are_usage_errors(
    cli: Cli, bus: SyncCommandBus, arguments: list[str], complaint: str
) -> None:
    assert complaint in cli("tsq", *arguments, code=2).err


def test_an_ended_command_cannot_be_retried(cli: Cli, bus: SyncCommandBus) -> None:
    assert "final" in cli("tsq", "retry", finish(bus), code=1).err
    assert "There is no command" in cli("tsq", "retry", str(uuid4()), code=7).err


def test_an_empty_queue_says_so(cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch) -> None:
    assert "empty" in cli("tsq", "list").err
    assert "no parked command matches" in cli("tsq", "retry", "--all", "--yes").err


def test_what_was_done_is_a_document_for_programs(cli: Cli, bus: SyncCommandBus) -> None:
    parked = [park(bus) for _ in range(3)]
    ended = finish(bus)
    would = cli("tsq", "retry", *parked, ended, "--dry-run", "--json")
    assert (would.document["would"], would.document["matched"]) == ("retry", 3)
    assert f"{ended} would be refused: it is COMPLETED" in would.err
    assert cli("tsq", "cancel", "--all", "--dry-run", "--json").document["matched"] == 3
    one = cli("tsq", "cancel", parked[0], ended, "--json", code=1)
    assert (one.document["done"], one.document["refused"]) == (1, 1)
    rest = cli("tsq", "complete", "--all", "--yes", "--json")
    assert (rest.document["done"], rest.document["refused"]) == (2, 0)
    assert cli("tsq", "retry", "--all", "--yes", "--json").document["done"] == 0


def test_ctrl_c_ends_between_two_commands_and_says_how_many_were_done(
    cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        park(bus)
    real = bulk_troubleshooting.operator_cancel
    calls = iter(range(4))

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if next(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return (yield from real(*arguments, **named))

    monkeypatch.setattr(bulk_troubleshooting, "operator_cancel", interrupted)
    ran = cli("tsq", "cancel", "--all", "--yes", code=130)
    assert "2 commands canceled" in ran.err
    assert "stopped: 2 parked commands left as before" in ran.err
    assert cli("tsq", "count").out == "2\n"


def test_a_canary_that_fails_leaves_the_rest_parked(cli: Cli, bus: SyncCommandBus) -> None:
    for _ in range(3):
        park(bus)
    ran = cli("tsq", "retry", "--all", "--canary", "1", "--patience", "0s", "--yes", code=1)
    assert "1 of the 1 retried first did not complete: 2 parked commands left" in ran.err
    assert "commandbus show " in ran.err
    assert cli("tsq", "count").out == "2\n"
    report = cli(
        "tsq", "retry", "--all", "--canary", "1", "--patience", "0s", "--yes", "--json", code=1
    ).document
    assert (report["done"], report["stopped"], report["failed"]) == (1, True, 1)
    assert len(report["failed_ids"]) == 1
