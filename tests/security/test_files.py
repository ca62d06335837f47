"""Files of an SQLite store: private by default, and no links to other people's files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from commandbus.connect import create_administration
from commandbus.errors import ConfigurationError
from commandbus.interfaces.cli import target
from commandbus.interfaces.web import hash_secret
from commandbus.runtimes.probes import SignsOfLife
from commandbus.store.administration import Level
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights of files are POSIX's")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def modes(path: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}


def test_all_files_of_a_new_store_are_its_owners_alone(path: Path) -> None:
    old = os.umask(0)
    try:
        with SyncCommandBus(f"sqlite:///{path}") as bus:
            bus.send("orders", "ship", {"card": "4111"})
            assert modes(path) == {
                "jobs.db": 0o600,
                "jobs.db-wal": 0o600,
                "jobs.db-shm": 0o600,
                "jobs.db.lock": 0o600,
            }
    finally:
        os.umask(old)


def test_a_store_that_is_shared_on_purpose_stays_shared(path: Path) -> None:
    path.touch()
    path.chmod(0o660)
    with SyncCommandBus(f"sqlite:///{path}") as bus:
        bus.send("orders", "ship")
        assert set(modes(path).values()) == {0o660}


def test_a_lock_file_that_is_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "somebody-elses"
    target.touch()
    Path(f"{path}.lock").symlink_to(target)
    with pytest.raises(ConfigurationError, match="no link"):
        SyncCommandBus(f"sqlite:///{path}").open()


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs files of another user"
)
def test_a_lock_file_of_another_user_is_refused_beside_a_private_store(path: Path) -> None:
    """Its owner could hold the lock, and every write would wait."""
    lock = Path(f"{path}.lock")
    with SyncCommandBus(f"sqlite:///{path}") as bus:
        bus.send("orders", "ship")
    lock.chmod(0o666)
    os.chown(lock, 65534, 65534)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        SyncCommandBus(f"sqlite:///{path}").open()
    path.chmod(0o660)  # shared with a group, in which any member may have made the lock
    with SyncCommandBus(f"sqlite:///{path}") as bus:
        bus.send("orders", "ship")
    path.chmod(0o600)
    lock.unlink()
    with SyncCommandBus(f"sqlite:///{path}") as bus:
        assert bus.stats("orders").ready == 2


def test_the_doctor_reports_files_that_others_can_read(path: Path) -> None:
    with SyncCommandBus(f"sqlite:///{path}"):
        administration = create_administration(f"sqlite:///{path}")
        assert [f.level for f in administration.doctor() if f.subject == "rights"] == [Level.OK]
        path.chmod(0o644)
        (finding,) = [f for f in administration.doctor() if f.subject == "rights"]
    assert (finding.level, finding.value) == (Level.WARNING, "jobs.db 0644")
    assert "chmod o-rwx" in finding.advice


@pytest.mark.parametrize(
    ("mode", "level", "code"), [(0o600, "ok", 0), (0o640, "warning", 0), (0o644, "error", 6)]
)
def test_the_doctor_reports_the_rights_of_the_accounts_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, level: str, code: int
) -> None:
    monkeypatch.setattr(target, "chosen_url", None)
    accounts = tmp_path / "accounts.toml"
    secret = hash_secret("a long and odd passphrase", name="vera")
    accounts.write_text(f'[[account]]\nname = "vera"\nrole = "viewer"\nsecret = "{secret}"\n')
    accounts.chmod(mode)
    with SyncCommandBus(f"sqlite:///{path}"):
        options = ("--accounts", str(accounts), "--url", f"sqlite:///{path}", "--json")
        shown = json.loads(Cli()("db", "doctor", *options, code=code).out)["findings"]
    (finding,) = [f for f in shown if f["subject"] == "accounts"]
    assert finding["level"] == level
    assert ("chmod 600" in finding["advice"]) is (level != "ok")
    assert secret not in str(finding)


def test_a_heartbeat_does_not_follow_a_link(tmp_path: Path) -> None:
    target, heartbeat = tmp_path / "target", tmp_path / "heartbeat"
    target.touch()
    os.utime(target, (0, 0))
    heartbeat.symlink_to(target)
    SignsOfLife(None, file=heartbeat)._touch()  # type: ignore[arg-type]
    assert target.stat().st_mtime == 0
    heartbeat.unlink()
    SignsOfLife(None, file=heartbeat)._touch()  # type: ignore[arg-type]
    assert heartbeat.is_file()
