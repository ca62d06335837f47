"""What a shell offers: values of the store, and nothing where the store has no answer."""

import socket
import threading
from uuid import UUID

import pytest
from typer.testing import CliRunner

from commandbus import SendRequest
from commandbus.domain.ids import short_id
from commandbus.interfaces.cli import completing
from commandbus.interfaces.cli.app import app
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli, finish, park


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be busy: how long is waited is another test."""
    monkeypatch.setattr(completing, "SECONDS", 20)


def offered(words: str, shell: str = "bash") -> list[str]:
    """What a shell is offered for the last of the words."""
    asked = {"_COMMANDBUS_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        asked |= {"COMP_WORDS": f"commandbus {words}", "COMP_CWORD": str(words.count(" ") + 1)}
    else:
        asked |= {"_TYPER_COMPLETE_ARGS": f"commandbus {words}"}
        asked |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {}
    ran = CliRunner().invoke(app, [], env=asked)
    assert ran.stderr == ""
    return ran.stdout.splitlines() if ran.stdout.strip() else []


def test_names_of_the_store_are_offered(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("shop", "Buy")
    bus.send("mail", "Send")
    cli("schedule", "add", "nightly", "shop", "Buy", "--cron", "0 3 * * *")
    cli("breaker", "open", "psp")
    assert offered("queue pause sh") == ["shop"]
    assert offered("list --domain s") == ["shop"]
    assert offered("list --type B") == ["Buy"]
    assert offered("send mail ") == ["Send"]  # of this domain
    assert offered("list --status p") == ["pending", "parked"]
    assert offered("process list --status comp") == ["compensating", "completed", "compensated"]
    assert offered("schedule show n") == offered("schedule delete n") == ["nightly"]
    assert offered("breaker reset ") == ["psp"]
    assert offered("limit list ") == ["mail", "shop"]


def test_ids_are_offered_by_kind_and_state(cli: Cli, bus: SyncCommandBus) -> None:
    parked, done = park(bus), finish(bus)
    waiting = str(bus.send("shop", "Buy").command_id)
    batch = bus.create_batch([SendRequest("mail", "Send")])
    (member,) = bus.list_batch_commands(batch.batch_id)
    assert offered("show ") == [str(member.command_id), waiting, done, parked]
    assert offered(f"show {waiting[:30]}") == [waiting]
    assert offered("tsq retry ") == offered("tsq show ") == [parked]
    assert offered("resend ") == [done]
    assert offered("show --domain mail ") == [str(member.command_id)]
    assert offered("batch show ") == offered("process list --batch ") == [str(batch.batch_id)]
    assert offered("process show ") == []


def test_a_short_id_becomes_the_whole_one(cli: Cli, bus: SyncCommandBus) -> None:
    sent = str(finish(bus))
    assert offered(f"show {short_id(UUID(sent))}") == [sent]
    assert offered(f"why {sent[-8:]}") == [sent]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_say_what_an_id_is(cli: Cli, bus: SyncCommandBus, shell: str) -> None:
    sent = park(bus)
    told = "".join(offered("tsq show ", shell))
    assert sent in told
    assert "shop/Buy IN_TROUBLESHOOTING_QUEUE" in told


def test_contexts_are_offered_and_meant(
    cli: Cli, bus: SyncCommandBus, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.send("shop", "Buy")
    monkeypatch.delenv("COMMANDBUS_URL")
    cli("context", "add", "prod", "--url", url)
    assert offered("context use p") == offered("--context p") == ["prod"]
    assert offered("--context prod queue pause ") == ["shop"]
    assert offered(f"--url {url} queue pause ") == ["shop"]
    assert offered("queue pause ") == []  # a store that is not there is no error in the line of a shell


def test_a_store_that_does_not_answer_offers_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        port = silent.getsockname()[1]
        monkeypatch.setenv("COMMANDBUS_URL", f"postgresql://nobody@127.0.0.1:{port}/none")
        assert offered("queue pause ") == []
        asking = [one for one in threading.enumerate() if one.name == "commandbus-completion"]
        assert all(one.daemon for one in asking)  # so that the end of the process does not wait for it
