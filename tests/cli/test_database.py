"""`db`: create, verify, print and examine the store."""

import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commandbus import SendRequest
from commandbus.engines.sqlite import doctor
from commandbus.engines.sqlite.doctor import SqliteAdministration
from commandbus.interfaces.cli import output
from commandbus.operations import erasure, retention
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli, park


def levels(cli: Cli, code: int = 0) -> dict[str, str]:
    findings = cli("db", "doctor", "--json", code=code).document["findings"]
    return {finding["subject"]: finding["level"] for finding in findings}


def test_upgrade_creates_the_store_and_verify_agrees(cli: Cli) -> None:
    assert "db upgrade" in cli("db", "verify", code=4).err
    cli("db", "upgrade")
    cli("db", "upgrade")
    assert "version" in cli("db", "verify").err
    assert cli("db", "verify", "--json").document["schema"] in cli("db", "upgrade").err


def test_sql_prints_statements_that_create_the_tables(cli: Cli, tmp_path: Path) -> None:
    script = cli("db", "sql").out
    connection = sqlite3.connect(tmp_path / "by-hand.db")
    connection.executescript(script)
    tables = {row[0] for row in connection.execute("select name from sqlite_master")}
    connection.close()
    assert "commandbus_command" in tables


def test_doctor_finds_a_healthy_store_healthy(cli: Cli, bus: SyncCommandBus) -> None:
    found = levels(cli)
    assert set(found) == {
        "library",
        "location",
        "rights",
        "size",
        "disk",
        "schema",
        "journal",
        "durability",
        "integrity",
        "leases",
        "clock",
    }
    assert set(found.values()) <= {"ok", "warning"}
    assert {row[0] for row in cli("db", "doctor").rows} == set(found)


def test_doctor_names_a_lease_that_was_not_taken_back(cli: Cli, bus: SyncCommandBus, url: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    lease = "(lease_id, domain, worker, claimed_at, until, members) values (7, 'shop', 'w', 0, 1, '[]')"
    connection.execute(f"insert into commandbus_lease {lease}")
    connection.commit()
    connection.close()
    findings = cli("db", "doctor", "--json").document["findings"]
    (found,) = [finding for finding in findings if finding["subject"] == "leases"]
    assert found["level"] == "warning"
    assert "the first: 7" in found["value"]


def test_doctor_on_a_terminal_gives_advice(
    cli: Cli, bus: SyncCommandBus, url: str, terminal: pytest.MonkeyPatch
) -> None:
    out = cli("db", "doctor", "--url", f"{url}?synchronous=off").out
    assert "synchronous=off" in out
    assert "power cut" in out


def test_doctor_warns_of_an_old_library_with_several_processes(
    cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SAFE_LIBRARY", (99, 0, 0))
    assert levels(cli)["library"] == "ok"
    monkeypatch.setattr(doctor, "_processes_using", lambda path: 3)
    assert levels(cli)["library"] == "warning"
    monkeypatch.setattr(doctor, "SAFE_LIBRARY", (3, 0, 0))
    assert levels(cli)["library"] == "ok"


def test_doctor_sees_who_has_the_file_open(url: str, bus: SyncCommandBus) -> None:
    path = SqliteAdministration(url).path
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not tell which files a process has open")
    assert doctor._processes_using(Path(f"{path}.lock")) == 1


def test_doctor_reports_a_broken_file(cli: Cli, url: str) -> None:
    SqliteAdministration(url).path.write_bytes(b"this is no database at all" * 100)
    found = levels(cli, code=6)
    assert found["schema"] == "error"
    assert found["integrity"] == "error"
    assert "not a healthy SQLite database" in cli("db", "upgrade", code=4).err
    assert "not a healthy SQLite database" in cli("list", code=4).err


def test_erase(cli: Cli, bus: SyncCommandBus) -> None:
    ids = {n: park(bus, data={"account": n}) for n in (42, 43)}
    order = ("db", "erase", "--subject", "data.account=42", "--yes", "--operator", "ann")
    assert "1 command not ended" in cli(*order, code=1).err
    cli("tsq", "cancel", ids[42])
    told = "would erase 1 command with data.account=42, in all domains"
    assert told in cli(*order, "--dry-run").err
    assert "1 command erased" in cli(*order).err
    erased, other = (bus.get_command(ids[n]) for n in (42, 43))
    assert erased is not None
    assert other is not None
    assert (erased.data, other.data) == ({"erased": True}, {"account": 43})
    assert "data.account=42" in cli("db", "erase", "--subject", "account:42", "--yes", code=2).err
    assert "--yes" in cli("db", "erase", "--subject", "tag=x", code=2).err


def test_prune_and_erase_ask_with_counts_and_show_how_far_they_are(
    cli: Cli, bus: SyncCommandBus, url: str, terminal: pytest.MonkeyPatch
) -> None:
    for sent in bus.send_many([SendRequest("shop", "Buy", tags=["ann"]) for _ in range(120)]):
        bus.cancel(sent.command_id)
    connection = sqlite3.connect(SqliteAdministration(url).path)
    connection.execute("update commandbus_outcome set finished_at = finished_at - 172800000000")
    connection.execute("update commandbus_command set created_at = created_at - 172800000000")
    connection.commit()
    connection.close()
    prune, erase = ("db", "prune", "--canceled", "1d"), ("db", "erase", "--subject", "tag=ann")
    assert "would prune 120 commands canceled more than 24 h ago" in cli(*prune, "--dry-run").err
    assert cli(*prune, "--dry-run", "--json").document == {"gone": 120}
    assert "Prune 120 commands canceled more than 24 h ago?" in cli(*prune, code=2).err
    assert "Erase 120 commands with tag=ann, in all domains?" in cli(*erase, code=2).err
    bars: list[tuple[str, int, list[int]]] = []

    @contextmanager
    def recorded(title: str, total: int) -> Iterator[Callable[..., None]]:
        bars.append((title, total, []))
        yield lambda pieces=1: bars[-1][2].append(pieces)

    terminal.setattr(output, "progress", recorded)
    terminal.setattr(retention, "PIECE", 50)
    cli(*erase, "--yes")
    cli(*prune, "--yes")
    assert bars == [("erase", 120, [100, 20]), ("prune", 120, [50, 50, 20])]
    assert not bus.query_commands()


def test_ctrl_c_ends_an_erasure_between_two_pieces(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    for sent in bus.send_many([SendRequest("shop", "Buy", tags=["ann"]) for _ in range(30)]):
        bus.cancel(sent.command_id)

    @contextmanager
    def interrupted(title: str, total: int) -> Iterator[Callable[..., None]]:
        yield lambda pieces=1: signal.raise_signal(signal.SIGINT)

    terminal.setattr(output, "progress", interrupted)
    terminal.setattr(erasure, "PIECE", 20)
    ran = cli("db", "erase", "--subject", "tag=ann", "--yes", code=130)
    assert "20 commands erased" in ran.err
    assert "stopped: 10 commands left as before" in ran.err


def test_a_file_of_a_newer_version_is_refused(cli: Cli, bus: SyncCommandBus, url: str) -> None:
    connection = sqlite3.connect(SqliteAdministration(url).path)
    connection.execute("insert into commandbus_schema values (99, 'later', 'x', 0, 99)")
    connection.commit()
    connection.close()
    for command in (["db", "verify"], ["db", "upgrade"], ["list"]):
        assert "upgrade this installation" in cli(*command, code=5).err


def test_a_file_without_tables_needs_an_upgrade(cli: Cli, url: str) -> None:
    sqlite3.connect(SqliteAdministration(url).path).close()
    SqliteAdministration(url).path.touch()
    assert "db upgrade" in cli("db", "verify", code=5).err


@pytest.mark.parametrize("command", [["db", "doctor"], ["list"], ["send", "shop", "Buy"]])
def test_memory_and_unknown_engines_are_usage_errors(cli: Cli, command: list[str]) -> None:
    assert "memory://" in cli(*command, "--url", "memory://", code=2).err
    assert "Unknown engine" in cli(*command, "--url", "mysql://secret:word@host/db", code=2).err
    assert "word" not in cli(*command, "--url", "mysql://secret:word@host/db", code=2).err
