"""SQLite files that cannot work: each is refused with an error that says what to do."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from commandbus.errors import CommandBusError, ConfigurationError, SchemaOutdated
from commandbus.testing import Configuration, Harness

needs_permissions = pytest.mark.skipif(
    os.geteuid() == 0, reason="root may write everything, so nothing is unwritable"
)


@pytest.fixture(params=["asyncio", "threads"])
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


def open_file(path: Path, runtime: str) -> Harness:
    return Configuration("sqlite", f"sqlite:///{path}").open(runtime)


def refusal(path: Path, runtime: str, kind: type[CommandBusError] = ConfigurationError) -> str:
    """What is said when a file is refused; it stays as it is."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(kind) as refused:
        open_file(path, runtime)
    assert (path.read_bytes() if path.is_file() else None) == before, "the file was touched"
    return str(refused.value)


def test_a_file_in_a_folder_that_is_missing(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "bus.db"
    assert "does not exist; create it" in refusal(path, runtime)


def test_a_file_below_a_file(runtime: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "bus.db"
    assert "does not exist" in refusal(path, runtime)


def test_a_folder_instead_of_a_file(runtime: str, tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path, runtime)


@needs_permissions
def test_a_file_that_may_not_be_written(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    path.touch(0o400)
    assert "change its permissions" in refusal(path, runtime)


@needs_permissions
def test_a_folder_that_may_not_be_written(runtime: str, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(0o500)
    assert "not writable" in refusal(folder / "bus.db", runtime)


def test_permissions_are_asked_for_before_anything_is_touched(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, and also where the tests run as root."""
    path = tmp_path / "bus.db"
    path.touch()
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != path)
    assert "change its permissions" in refusal(path, runtime)


@pytest.mark.parametrize("content", [b"this is not a database, " * 100, b"\x00" * 4096])
def test_a_file_of_something_else(runtime: str, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bus.db"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"not a healthy SQLite database.*backup"):
        open_file(path, runtime)


def test_a_damaged_file(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    bus = open_file(path, runtime)
    bus.send()
    bus.close()
    content = bytearray(path.read_bytes())
    content[100:2_000] = b"\xff" * 1_900
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="not a healthy SQLite database"):
        open_file(path, runtime)


def test_a_file_of_a_newer_version(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    open_file(path, runtime).close()
    connection = sqlite3.connect(path)
    connection.execute("insert into commandbus_schema values (99, 'future', '', 0, 99)")
    connection.commit()
    connection.close()
    with pytest.raises(SchemaOutdated, match=r"version 99.*upgrade this installation"):
        open_file(path, runtime)


def test_a_bus_that_is_not_open_says_so(runtime: str, tmp_path: Path) -> None:
    bus = open_file(tmp_path / "bus.db", runtime)
    bus.call(bus.bus.close)
    with pytest.raises(CommandBusError, match=r"not open|closed"):
        bus.send()
    bus.call(bus.bus.open)
    assert bus.send()
    bus.close()


def test_a_foreign_database_keeps_its_own_tables(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("create table command (n integer)")
    connection.execute("insert into command values (1)")
    connection.commit()
    bus = open_file(path, runtime)
    bus.send()
    bus.close()
    assert connection.execute("select n from command").fetchall() == [(1,)]
    connection.close()
