"""`batch`: progress of commands that belong together."""

import threading
import time
from pathlib import Path
from uuid import uuid4

import pytest

from commandbus import PermanentCommandError, SendRequest
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.cli.helpers import Cli, run_on_terminal


def create(bus: SyncCommandBus, count: int = 4, *, domain: str = "shop", name: str = "import") -> str:
    requests = [SendRequest(domain, "Buy", number) for number in range(count)]
    return str(bus.create_batch(requests, name=name, custom_data={"by": "ada"}).batch_id)


def complete(bus: SyncCommandBus, count: int, *, domain: str = "shop") -> None:
    worker = SyncWorker(bus, domain)
    for received in worker.receive(count):
        worker.complete(received)


def close(bus: SyncCommandBus, batch_id: str) -> None:
    """What a running worker does when the last command has ended."""
    bus.cancel_batch(batch_id)


def test_list_has_the_counts(cli: Cli, bus: SyncCommandBus) -> None:
    first, second = create(bus), create(bus, 2, domain="mail")
    complete(bus, 1)
    heading = cli("batch", "list").out.splitlines()[0].split("\t")
    rows = [dict(zip(heading, row, strict=True)) for row in cli("batch", "list").rows]
    assert [row["id"] for row in rows] == [second, first]
    assert (rows[1]["status"], rows[1]["completed"], rows[1]["done"]) == ("IN_PROGRESS", "1", "0.2500")
    assert (rows[0]["status"], rows[0]["total"], rows[0]["done"]) == ("PENDING", "2", "0.0000")
    assert [row[0] for row in cli("batch", "list", "--domain", "mail").rows] == [second]
    assert [row[0] for row in cli("batch", "list", "--status", "pending").rows] == [second]


def test_list_goes_on_page_by_page(cli: Cli, bus: SyncCommandBus) -> None:
    ids = [create(bus, 1) for _ in range(3)]
    page = cli("batch", "list", "-n", "2", "--json").document
    assert [batch["batch_id"] for batch in page["batches"]] == ids[:0:-1]
    assert f"--after {page['next']}" in cli("batch", "list", "-n", "2").err
    rest = cli("batch", "list", "-d", "shop", "-n", "2", "--after", page["next"])
    assert [row[0] for row in rest.rows] == ids[:1]


def test_show_has_a_bar_on_a_terminal_only(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    batch = create(bus)
    complete(bus, 3)
    out = cli("batch", "show", batch).out
    assert "import  running" in out
    assert "━" in out
    assert " 75%  3/4" in out
    assert "3 completed, 1 to come of 4" in out
    assert '{"by":"ada"}' in out
    assert all(len(line) <= 80 for line in out.splitlines())
    terminal.undo()
    terminal.setenv("COMMANDBUS_URL", bus.url)
    assert "━" not in cli("batch", "show", batch).out


def test_show_as_a_document(cli: Cli, bus: SyncCommandBus) -> None:
    batch = create(bus)
    complete(bus, 1)
    document = cli("batch", "show", batch, "--json").document
    assert (document["batch_id"], document["completed"], document["progress"]) == (batch, 1, 0.25)


def test_a_parked_command_keeps_it_open_and_is_reported(cli: Cli, bus: SyncCommandBus) -> None:
    batch = create(bus, 1)
    worker = SyncWorker(bus, "shop")
    (received,) = worker.receive()
    worker.fail(received, PermanentCommandError("BROKEN", "it is broken"))
    ran = cli("batch", "show", batch)
    assert "1 parked of 1" in ran.out
    assert "tsq list --domain shop" in ran.err
    assert "1 parked" in cli("batch", "show", batch, "--watch", "--timeout", "10ms", code=8).err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_watch_ends_when_the_batch_is_complete(
    cli: Cli, bus: SyncCommandBus, url: str, options: list[str]
) -> None:
    batch = create(bus, 2)

    def finish() -> None:
        with SyncCommandBus(url) as other:
            complete(other, 2)
            close(other, batch)

    thread = threading.Timer(0.1, finish)
    thread.start()
    ran = cli("batch", "show", batch, "--watch", "--timeout", "20s", *options)
    thread.join(30)
    if options:
        assert ran.document["status"] == "COMPLETED"
    else:
        assert "2 completed of 2" in ran.out


def test_watch_tells_failures_by_its_exit_code(cli: Cli, bus: SyncCommandBus) -> None:
    batch = create(bus, 2)
    cli("batch", "cancel", batch, "--yes")
    assert "2 canceled of 2" in cli("batch", "show", batch, "--watch", code=1).out
    cli("batch", "show", batch)


def test_watch_draws_on_a_terminal(bus: SyncCommandBus, url: str, tmp_path: Path) -> None:
    batch = create(bus, 2)
    complete(bus, 1)
    ran = run_on_terminal(
        *("batch", "show", batch, "--watch", "--timeout", "100ms", "--url", url),
        folder=tmp_path,
        columns=80,
    )
    assert ran.code == 8
    assert "━" in ran.out
    assert "not complete after" in ran.out


def test_commands_of_a_batch(cli: Cli, bus: SyncCommandBus) -> None:
    batch = create(bus, 3)
    create(bus, 3)
    complete(bus, 1)
    assert len(cli("batch", "commands", batch).rows) == 3
    assert len(cli("batch", "commands", batch, "--status", "completed").rows) == 1
    page = cli("batch", "commands", batch, "-n", "2", "--json").document
    assert len(page["commands"]) == 2
    assert len(cli("batch", "commands", batch, "--after", page["next"]).rows) == 1


def test_cancel_ends_what_has_not_ended_when_it_is_confirmed(cli: Cli, bus: SyncCommandBus) -> None:
    batch = create(bus)
    complete(bus, 1)
    assert "3 commands" in cli("batch", "cancel", batch, "--dry-run").err
    assert "--yes" in cli("batch", "cancel", batch, code=2).err
    ran = cli("batch", "cancel", batch, "--yes", "--reason", "obsolete", "--operator", "ada")
    assert "canceled 3 commands" in ran.err
    record = bus.get_batch(batch)
    assert record is not None
    assert (record.status, record.canceled) == ("COMPLETED_WITH_FAILURES", 3)
    canceled = bus.list_batch_commands(batch, status="CANCELED")[0]
    assert canceled.reason == "obsolete"


@pytest.mark.parametrize("verb", ["show", "commands", "cancel"])
def test_one_that_does_not_exist_is_not_found(cli: Cli, bus: SyncCommandBus, verb: str) -> None:
    create(bus)
    assert "no batch" in cli("batch", verb, str(uuid4()), code=7).err
    assert "is not the id of a batch" in cli("batch", verb, "nonsense", code=2).err


def test_show_names_all_domains(cli: Cli, bus: SyncCommandBus) -> None:
    requests = [SendRequest("shop", "Buy"), SendRequest("mail", "Send")]
    batch = str(bus.create_batch(requests).batch_id)
    assert "batch of mail, shop" in cli("batch", "show", batch).out


def test_cancel_says_how_many_are_asked_to_stop(cli: Cli, bus: SyncCommandBus) -> None:
    batch = create(bus, 2)
    SyncWorker(bus, "shop").receive()
    err = cli("batch", "cancel", batch, "--yes").err
    assert "canceled 1 command " in err
    assert "1 asked to stop" in err


def test_an_unknown_status_is_a_usage_error(cli: Cli, bus: SyncCommandBus) -> None:
    create(bus)
    assert "nonsense" in cli("batch", "list", "--status", "nonsense", code=2).err.lower()


def test_a_watch_ends_at_its_timeout_in_time(cli: Cli, bus: SyncCommandBus) -> None:
    batch, began = create(bus), time.monotonic()
    cli("batch", "show", batch, "--watch", "--timeout", "50ms", code=8)
    assert time.monotonic() - began < 10
