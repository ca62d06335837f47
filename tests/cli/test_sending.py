"""`send` and `cancel`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from commandbus import CommandStatus
from commandbus.operations.canceling import open_requests
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.cli.helpers import Cli, finish


def test_send_prints_the_id_alone_in_a_pipe(cli: Cli, bus: SyncCommandBus) -> None:
    ran = cli("send", "shop", "Buy", '{"amount": 12}')
    record = bus.get_command(ran.out.strip())
    assert record is not None
    assert record.data == {"amount": 12}


def test_send_takes_every_option(cli: Cli, bus: SyncCommandBus) -> None:
    wanted = str(uuid4())
    ran = cli(
        *("send", "shop", "Buy", "[1]", "--id", wanted, "--priority", "high", "--delay", "2h"),
        *("--expires-in", "1d", "--unique-key", "one", "--max-attempts", "7", "--tag", "a"),
        *("--tag", "b", "--header", "k=v=w", "--json"),
    )
    assert ran.document == {
        "command_id": wanted,
        "domain": "shop",
        "duplicate": False,
        "checked": False,
    }
    record = bus.get_command(wanted)
    assert record is not None
    assert record.priority == 0
    assert record.tags == ("a", "b")
    assert record.headers == {"k": "v=w"}
    assert record.max_attempts == 7
    assert record.unique_key == "one"
    assert (record.due_at - record.created_at).total_seconds() == pytest.approx(7200)
    assert record.expires_at is not None


def test_a_number_is_a_priority_too(cli: Cli, bus: SyncCommandBus) -> None:
    sent = cli("send", "shop", "Buy", "--priority", "-3").out.strip()
    record = bus.get_command(sent)
    assert record is not None
    assert record.priority == -3
    assert record.data is None


def test_send_reads_a_file_or_standard_input(cli: Cli, bus: SyncCommandBus, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"from": "file"}')
    for source, stdin, expected in (
        (f"@{file}", None, {"from": "file"}),
        ("-", '{"from": "stdin"}', {"from": "stdin"}),
    ):
        record = bus.get_command(cli("send", "shop", "Buy", source, stdin=stdin).out.strip())
        assert record is not None
        assert record.data == expected


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["shop", "Buy", "{amount: 12}"], "not JSON"),
        (["shop", "Buy", "@missing.json"], "cannot be read"),
        (["shop", "Buy", "--delay", "soon"], "--delay must be a duration"),
        (["shop", "Buy", "--header", "novalue"], "KEY=VALUE"),
        (["shop", "Buy", "--priority", "urgent"], "high"),
        (["not a name", "Buy"], "not a valid name"),
        (["shop", "Buy", "--id", "42"], "UUID"),
        (["shop", "Buy", '["\\u0000"]'], "NUL"),
    ],
)
def test_what_cannot_be_sent_is_a_usage_error_in_one_line(
    cli: Cli, bus: SyncCommandBus, arguments: list[str], complaint: str
) -> None:
    ran = cli("send", *arguments, code=2)
    assert complaint in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""
    assert not bus.query_commands()


def test_a_second_send_with_the_same_id_is_refused(cli: Cli, bus: SyncCommandBus) -> None:
    wanted = str(uuid4())
    cli("send", "shop", "Buy", "--id", wanted)
    assert "exists already" in cli("send", "shop", "Buy", "--id", wanted, code=1).err


def test_cancel_ends_a_waiting_command_with_its_reason(cli: Cli, bus: SyncCommandBus) -> None:
    sent = bus.send("shop", "Buy")
    cli("cancel", "--domain", "shop", str(sent.command_id), "--reason", "mistake", "--operator", "ada")
    record = bus.get_command(sent.command_id)
    assert record is not None
    assert record.status is CommandStatus.CANCELED
    assert record.reason == "mistake"
    last = bus.get_audit_trail(sent.command_id)[-1]
    assert last.details["actor"] == "ada"


def test_cancel_may_ask_for_the_end_of_a_child_process(cli: Cli, bus: SyncCommandBus) -> None:
    command_id = bus.send("d", "x").command_id
    SyncWorker(bus, "d").receive()
    assert "asked to stop" in cli("cancel", str(command_id)).err
    assert terminated(bus) == [False]
    cli("cancel", str(command_id), "--terminate")
    assert terminated(bus) == [True]


def terminated(bus: SyncCommandBus) -> list[bool]:
    requests = bus.session.run(open_requests(bus.scope, ["d"]))
    return [request.terminate for request in requests.values()]


def test_a_dry_run_cancels_nothing(cli: Cli, bus: SyncCommandBus) -> None:
    sent = bus.send("shop", "Buy")
    ran = cli("cancel", "--domain", "shop", str(sent.command_id), "--dry-run")
    assert "would cancel" in ran.err
    record = bus.get_command(sent.command_id)
    assert record is not None
    assert record.status is CommandStatus.PENDING


def test_cancel_tells_missing_from_ended(cli: Cli, bus: SyncCommandBus) -> None:
    assert "There is no command" in cli("cancel", "--domain", "shop", str(uuid4()), code=7).err
    assert "final" in cli("cancel", finish(bus), code=1).err


APP = """
import msgspec
from commandbus import Command, HandlerRegistry

registry = HandlerRegistry()

class Order(msgspec.Struct):
    item: str
    amount: int

@registry.handler("shop", "Buy")
async def buy(command: Command[Order], context) -> None: ...
"""


@pytest.fixture
def shop(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an app in the current folder."""
    Path("sending_shop.py").write_text(APP)
    monkeypatch.syspath_prepend(Path.cwd())
    yield "sending_shop"
    sys.modules.pop("sending_shop", None)


def test_a_payload_that_does_not_fit_its_handler_is_refused(
    cli: Cli, bus: SyncCommandBus, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMANDBUS_APP", shop)
    refused = cli("send", "shop", "Buy", '{"item": "tea", "amount": "two"}', code=2)
    assert "Expected int, got str at $.amount" in refused.err
    assert "missing required field amount" in cli("send", "shop", "Buy", '{"item": "tea"}', code=2).err
    assert not bus.list_domains()
    sent = cli("send", "shop", "Buy", '{"item": "tea", "amount": 2}', "--json")
    assert (sent.document["checked"], sent.err) == (True, "")
    unchecked = cli("send", "shop", "Buy", "{}", "--no-check", "--json")
    assert (unchecked.document["checked"], unchecked.err) == (False, "")


def test_a_payload_that_cannot_be_checked_is_sent_and_said(
    cli: Cli, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = cli("send", "shop", "Buy", "--json")
    assert sent.document["checked"] is False
    assert "not checked: name the app with the handlers by --app" in sent.err
    other = cli("send", "shop", "Buyy", "--app", shop)
    assert "has no handler for shop/Buyy; is it shop/Buy?" in other.err
    monkeypatch.setenv("COMMANDBUS_APP", "no_such_module")
    assert "not checked: There is no module 'no_such_module'" in cli("send", "shop", "Buy").err
    assert "no module" in cli("send", "shop", "Buy", "--app", "no_such_module", code=3).err
