"""`list`, `show`, `watch` and `audit`."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.command import SendRequest
from commandbus.domain.ids import short_id
from commandbus.domain.presence import WorkerRestart
from commandbus.interfaces import search
from commandbus.interfaces.cli import health, output
from commandbus.interfaces.cli.commands import COLUMNS
from commandbus.interfaces.cli.details import summary
from commandbus.interfaces.cli.troubleshooting import COLUMNS as PARKED_COLUMNS
from commandbus.operations.restarts import record_restart
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.cli.helpers import Cli, finish, park


def test_audit_verify_tells_what_was_tampered_with(cli: Cli, bus: SyncCommandBus, url: str) -> None:
    assert cli("audit", "verify").out == ""
    cli("tsq", "cancel", park(bus), "--operator", "ann", "--reason", "obsolete")
    sound = cli("audit", "verify")
    assert "1 action as recorded" in sound.err
    assert cli("audit", "verify", "--expect", sound.out.strip()).out == sound.out
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("update commandbus_audit set details = replace(details, 'ann', 'ben')")
    told = cli("audit", "verify", code=1)
    assert told.rows[0][:2] == ["changed", "1"]
    assert "OPERATOR_CANCEL of shop" in told.rows[0][2]
    assert cli("audit", "verify", "--json", code=1).document["links"] == 1


def test_check_tells_what_new_code_would_not_carry_out(cli: Cli, bus: SyncCommandBus) -> None:
    Path("shop.py").write_text(
        "from commandbus import Command, HandlerRegistry\n"
        "registry = HandlerRegistry()\n"
        "@registry.handler('shop', 'Buy')\n"
        "def buy(command: Command[dict[str, int]], context): ...\n"
    )
    bus.send("shop", "Buy", {"amount": 1})
    assert "1 command checked: all of them fit" in cli("check", "shop:registry").err
    wrong = bus.send("shop", "Buy", {"amount": "x"}).command_id
    found = cli("check", "shop:registry", code=1)
    assert found.rows[0][:5] == ["shop", "Buy", "1", "0", str(wrong)]
    assert "1 would not be carried out" in found.err
    assert cli("check", "shop:registry", "--json", code=1).document["checked"] == 2


def test_a_list_in_a_pipe_is_tsv_with_a_heading(cli: Cli, bus: SyncCommandBus) -> None:
    done, parked = finish(bus), park(bus)
    ran = cli("list")
    assert ran.out.splitlines()[0].split("\t")[:4] == ["id", "domain", "type", "status"]
    assert [row[0] for row in ran.rows] == [parked, done]
    assert ran.rows[0][3] == "IN_TROUBLESHOOTING_QUEUE"
    assert datetime.fromisoformat(ran.rows[0][6]).utcoffset() is not None


def test_a_list_on_a_terminal_is_a_table_that_fits(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    parked = park(bus, "AVeryLongNameOfACommandTypeThatDoesNotFit")
    for columns in (50, 60, 80, 120):
        terminal.setenv("COLUMNS", str(columns))
        for words in (["list"], ["tsq", "list"], ["audit"]):
            ran = cli(*words)
            shown = parked if columns >= 100 else short_id(parked)
            assert shown in ran.out, "what identifies a command is never cut"
            assert all(len(line) <= columns for line in ran.out.splitlines())
    assert "parked" in cli("list").out


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("--status", "parked", 1),
        ("--status", "completed", 1),
        ("--status", "PENDING", 0),
        ("--domain", "shop", 2),
        ("--domain", "other", 0),
        ("--type", "Buy", 2),
        ("--tag", "red", 1),
    ],
)
def test_list_filters(cli: Cli, bus: SyncCommandBus, option: str, value: str, found: int) -> None:
    finish(bus)
    park(bus, tags=["red"])
    assert len(cli("list", option, value).rows) == found


def test_pages_follow_each_other(cli: Cli, bus: SyncCommandBus) -> None:
    sent = [str(bus.send("shop", "Buy").command_id) for _ in range(5)]
    first = cli("list", "-n", "2", "--json").document
    second = cli("list", "-n", "3", "--after", first["next"], "--json").document
    seen = [command["command_id"] for command in first["commands"] + second["commands"]]
    assert seen == sent[::-1]
    assert second["next"] is None
    assert "--after" in cli("list", "-n", "2").err


def test_unknown_status_and_cursor_are_usage_errors(cli: Cli, bus: SyncCommandBus) -> None:
    assert "Unknown status 'lost'; use pending, running" in cli("list", "--status", "lost", code=2).err
    assert "not the `next`" in cli("list", "--after", "x", code=2).err


def test_show_has_record_payload_error_and_timeline(cli: Cli, bus: SyncCommandBus) -> None:
    parked = park(bus, data={"amount": 12}, headers={"trace": "t-1"}, unique_key="only")
    out = cli("show", parked).out
    for expected in ("shop/Buy", "parked", '{"amount":12}', "BROKEN: it is broken", "trace: t-1"):
        assert expected in out
    timeline = out[out.index("timeline") :]
    assert [word for word in ("sent", "received", "parked") if word in timeline] == [
        "sent",
        "received",
        "parked",
    ]


@pytest.mark.parametrize("word", ["parked", "MOVED_TO_TSQ", "moved-to-tsq"])
def test_events_are_found_by_their_words_and_by_their_types(
    cli: Cli, bus: SyncCommandBus, word: str
) -> None:
    parked = park(bus)
    bus.send("shop", "Buy")
    assert [row[1:5] for row in cli("audit", "--event", word).rows] == [
        ["MOVED_TO_TSQ", "shop", "Buy", str(parked)]
    ]


def test_show_as_json_is_the_record_with_its_trail(cli: Cli, bus: SyncCommandBus) -> None:
    done = finish(bus, {"receipt": 7})
    document = cli("show", done, "--json").document
    assert document["command_id"] == done
    assert document["status"] == "COMPLETED"
    assert document["result"] == {"receipt": 7}
    assert document["created_at"].endswith("Z")
    assert [event["event_type"] for event in document["audit"]] == ["SENT", "RECEIVED", "COMPLETED"]


@pytest.mark.parametrize("command", ["show", "watch", "audit"])
def test_what_is_not_there_is_not_found(cli: Cli, bus: SyncCommandBus, command: str) -> None:
    error = cli(command, str(uuid4()), code=7).err
    assert "There is no command" in error
    assert f"Looked in {bus.url}" in error.replace("\n", " ")
    assert "is not the id of a command" in cli(command, "not-an-id", code=2).err


def test_an_id_in_two_domains_asks_which(cli: Cli, bus: SyncCommandBus) -> None:
    shared = str(uuid4())
    bus.send("one", "Buy", command_id=shared)
    bus.send("two", "Buy", command_id=shared)
    assert "--domain" in cli("show", shared, code=2).err
    assert "two/Buy" in cli("show", shared, "--domain", "two").out


def test_audit_lists_every_event(cli: Cli, bus: SyncCommandBus) -> None:
    done = finish(bus)
    assert [row[1] for row in cli("audit", done).rows] == ["SENT", "RECEIVED", "COMPLETED"]
    assert [event["event_type"] for event in cli("audit", done, "--json").document["events"]] == [
        "SENT",
        "RECEIVED",
        "COMPLETED",
    ]


def test_watch_ends_with_the_outcome(cli: Cli, bus: SyncCommandBus) -> None:
    assert "completed" in cli("watch", finish(bus, {"ok": 1})).err
    assert "BROKEN" in cli("watch", park(bus), code=1).err
    assert cli("watch", finish(bus), "--json").document["status"] == "COMPLETED"


def test_watch_gives_up_in_time(cli: Cli, bus: SyncCommandBus) -> None:
    sent = str(bus.send("shop", "Buy").command_id)
    began = time.monotonic()
    assert "no outcome" in cli("watch", sent, "--timeout", "100ms", code=8).err
    assert time.monotonic() - began < 5


def test_watch_sees_what_happens_meanwhile(cli: Cli, bus: SyncCommandBus) -> None:
    sent = bus.send("shop", "Buy")
    later = threading.Timer(0.2, bus.cancel, (sent,), {"reason": "changed my mind"})
    later.start()
    ran = cli("watch", str(sent.command_id), "--timeout", "20s", code=1)
    later.join(30)
    assert "canceled" in ran.out
    assert "changed my mind" in ran.err


def test_a_running_command_is_asked_to_stop(cli: Cli, bus: SyncCommandBus) -> None:
    sent = bus.send("shop", "Buy")
    SyncWorker(bus, "shop").receive()
    assert "to stop" in cli("cancel", str(sent.command_id)).err
    waiting = bus.send("shop", "Buy")
    told = cli("cancel", str(waiting.command_id), "--json").document
    assert (told["examples"], told["answers"]) == ([str(waiting.command_id)], [{"done": "canceled"}])


def test_restarts_of_workers_are_shown(cli: Cli, bus: SyncCommandBus) -> None:
    assert cli("audit", "--restarts").rows == []
    now = datetime.now(UTC)
    restart = WorkerRestart("w-1", "host", 7, now, "3 threads are stuck in handlers")
    bus.session.run(record_restart(bus.scope, restart))
    assert cli("audit", "--restarts").rows[0][-1] == "3 threads are stuck in handlers"
    assert cli("audit", "--restarts", "--json").document["restarts"][0]["worker"] == "w-1"


def test_audit_searches_all_commands(cli: Cli, bus: SyncCommandBus) -> None:
    finish(bus)
    parked, other = park(bus), park(bus, domain="other")
    bus.acting("ana").pause("shop", "stocktaking")
    assert [row[4] for row in cli("audit").rows] == [other, parked]
    assert [row[4] for row in cli("audit", "--domain", "shop", "--event", "moved-to-tsq").rows] == [
        parked
    ]
    assert cli("audit", "--who", "nobody").rows == []
    assert "Unknown event" in cli("audit", "--event", "LOST_KEYS", code=2).err
    first = cli("audit", "-n", "1", "--json").document
    second = cli("audit", "-n", "1", "--after", first["next"], "--json").document
    assert second["entries"][0]["event"]["command_id"] == parked
    assert [row[1:] for row in cli("audit", "--people").rows] == [
        ["ana", "pause", "shop", "stocktaking"]
    ]


@pytest.mark.parametrize(("columns", "shown"), [(80, 7), (100, 7), (120, 8)])
def test_a_table_shows_whole_values_and_as_many_columns_as_fit(columns: int, shown: int) -> None:
    row = SimpleNamespace(
        command_id="01a1e319-5e4d-7000-95af-52550428b90c", domain="payments", command_type="Charge",
        status="IN_PROGRESS", priority=5, attempts=1, created_at=datetime.now(UTC),
        error_code="NO_SUCH_CITY",
    )  # fmt: skip
    built = output.rich_table([row], COLUMNS, columns)
    assert len(built.columns) == shown
    assert sum(column.width + output.GAP for column in built.columns) - output.GAP <= columns
    assert built.columns[3].width >= len("running")


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_a_long_message_does_not_hide_the_domain(columns: int) -> None:
    row = SimpleNamespace(
        command_id="01a1e319-5e4d-7000-95af-52550428b90c", domain="payments", command_type="Charge",
        attempts=3, error_code="NO_SUCH_CITY", error_message="a word " * 500,
        finished_at=datetime.now(UTC),
    )  # fmt: skip
    built = output.rich_table([row], PARKED_COLUMNS, columns)
    headings = [str(column.header) for column in built.columns]
    assert headings[:4] == ["ID", "DOMAIN", "TYPE", "CODE"]
    assert headings[-1] == "MESSAGE"
    assert built.columns[-1].width >= output.NARROWEST


def test_why_tells_what_to_do_about_a_parked_command(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    parked = park(bus)
    assert f"commandbus tsq retry {parked} --reason" in cli("why", parked).err


def test_a_status_has_the_words_of_the_filter(cli: Cli, bus: SyncCommandBus) -> None:
    parked = park(bus)
    bus.send("shop", "Buy")
    (received,) = SyncWorker(bus, "shop").receive()
    running = str(received.command.command_id)
    for word, expected in (("running", running), ("In-Progress", running), ("parked", parked)):
        assert [row[0] for row in cli("list", "--status", word).rows] == [expected], word


def test_an_answer_is_broken_between_words(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    parked = park(bus, message="a word " * 20)
    lines = cli("why", parked).out.splitlines()
    assert len(lines) > 1
    assert {word for line in lines[1:] for word in line.split()} == {"a", "word"}
    assert max(map(len, lines)) <= 80


def test_a_few_digits_of_an_id_will_do(cli: Cli, bus: SyncCommandBus) -> None:
    one, two = (f"01a1e319-5e4d-7000-95af-52550428b9{end}" for end in ("0c", "1d"))
    for command_id in (one, two):
        bus.send("shop", "Buy", command_id=command_id)
    assert one in cli("show", "…0428b90c").out
    assert "SENT" in cli("audit", "b91d").out
    assert two in cli("cancel", "b91d", "--dry-run").out
    assert "may be any of 2 commands" in cli("show", "01a1e319", code=2).err
    assert "no command or process" in cli("why", "abcdef", code=7).err


def test_a_list_takes_the_filter_of_the_dashboard(cli: Cli, bus: SyncCommandBus) -> None:
    parked = park(bus, data={"account": 42}, tags=["red"])
    finish(bus)
    for words in (
        ["status:parked", "data.account:42"],
        ["error:BROKEN"],
        ["age:<1h tag:red"],
        [parked],
    ):
        assert [row[0] for row in cli("list", *words).rows] == [parked], words
    assert cli("list", "data.account:43").rows == []
    assert cli("list", "parked", "--domain", "other").rows == []
    assert "not something to filter by" in cli("list", "colour:red", code=2).err


def test_a_search_that_takes_long_says_how_far_it_looked(
    cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = str(bus.send("shop", "Buy", tags=["red"]).command_id)
    for _ in range(3):
        bus.send("shop", "Buy")
    monkeypatch.setattr(search, "SCAN_FIRST", 2)
    begun = cli("list", "--tag", "red", "--timeout", "0s", "--json", code=8).document
    assert (begun["commands"], begun["exhausted"]) == ([], False)
    assert (
        "stopped before everything was looked at"
        in cli("list", "--tag", "red", "--timeout", "0s", code=8).err
    )
    ended = cli("list", "--tag", "red", "--after", begun["next"], "--json").document
    assert [command["command_id"] for command in ended["commands"]] == [first]


def test_a_search_goes_on_until_everything_was_looked_at(
    cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = str(bus.send("shop", "Buy", tags=["red"]).command_id)
    for _ in range(9):
        bus.send("shop", "Buy")
    monkeypatch.setattr(search, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(search, "SCAN_FIRST", 2)
    monkeypatch.setattr(search, "SCAN_MAX", 2)
    ended = cli("list", "--tag", "red", "--json").document
    assert ended["exhausted"] is True
    assert [command["command_id"] for command in ended["commands"]] == [first]


def test_a_short_id_as_lists_show_it_is_found_whatever_its_age(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    wanted = park(bus)
    batch = bus.create_batch([SendRequest("shop", "Buy")]).batch_id
    bus.send_many([SendRequest("shop", "Buy") for _ in range(1_200)])
    shown = cli("tsq", "list").out.splitlines()[1].split()[0]
    assert shown == short_id(wanted)
    listed = cli("batch", "list").out.splitlines()[1].split()[0]
    assert listed == short_id(batch)
    terminal.undo()
    terminal.setenv("COMMANDBUS_URL", bus.url)
    assert cli("show", shown, "--json").document["command_id"] == wanted
    assert cli("list", shown, "--json").document["commands"][0]["command_id"] == wanted
    assert cli("list", f"id:…{shown[-6:]}", "--json").document["commands"][0]["command_id"] == wanted
    assert cli("why", shown[-6:], "--json").document["command_id"] == wanted
    assert cli("batch", "show", listed, "--json").document["batch_id"] == str(batch)
    assert len(cli("list", f"batch:{listed}").rows) == 1
    assert "sent back to work" in cli("tsq", "retry", shown).err
    assert "There is no command" in cli("show", "ffffffff", code=7).err
    assert "Give more digits" in cli("show", shown[:4], code=2).err


def test_why_says_the_same_thing_once(cli: Cli, bus: SyncCommandBus) -> None:
    sent = bus.send("shop", "Wait", delay=3_600)
    bus.cancel(sent)
    assert [row[0] for row in cli("why", str(sent.command_id)).rows] == ["ENDED"]


def test_commands_of_the_bus_itself_are_listed_when_asked_for(cli: Cli, bus: SyncCommandBus) -> None:
    own = str(bus.send("shop", "Buy", reply_to="answers").command_id)
    bus.cancel(own)
    assert [row[0] for row in cli("list").rows] == [own]
    assert len(cli("list", "--internal").rows) == len(cli("list", "internal:yes").rows) == 2
    assert len(cli("list", "--type", "commandbus.reply").rows) == 1


def test_a_probe_answers_in_time_although_the_store_does_not(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()

    @contextmanager
    def never(url: str | None) -> Iterator[SyncCommandBus]:
        done.wait()
        raise AssertionError("nobody waits for it")
        yield

    monkeypatch.setattr(health.target, "opened", never)
    assert "did not answer within 10 ms" in cli("health", "--timeout", "10ms", code=4).err
    monkeypatch.undo()
    done.set()


def test_a_list_has_the_columns_and_the_time_that_were_asked_for(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("shop", "Buy")
    ran = cli("list", "--columns", "status,domain", "--since", "1h")
    assert ran.out == "status\tdomain\nPENDING\tshop\n"
    assert cli("list", "--until", "1h").rows == []
    assert cli("list", "--since", "2999-01-01T00:00Z").rows == []
    assert "There is no column 'colour'" in cli("list", "--columns", "colour", code=2).err
    assert "--since must be a time ago" in cli("list", "--since", "soon", code=2).err


def test_a_parked_command_is_shown_with_what_can_be_done(cli: Cli, bus: SyncCommandBus) -> None:
    parked, done = park(bus), finish(bus)
    assert f"commandbus tsq retry {parked} --data" in cli("show", parked).err
    assert cli("show", done).err == ""
    assert cli("show", parked, "--json").err == ""


def test_the_time_that_a_canceled_run_took_is_in_words() -> None:
    details = {"ran": 10_001_080, "reason": "ordered twice"}
    event = AuditEvent("shop", uuid4(), AuditEventType.CANCELED, datetime.now(UTC), details)
    assert summary(event) == "ran 10 s, reason ordered twice"
