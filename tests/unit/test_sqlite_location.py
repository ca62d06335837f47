"""Where a SQLite store may lie: URLs, file systems, folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from commandbus.engines.sqlite import SqliteEngine, location
from commandbus.errors import (
    ConfigurationError,
)

# Where the file is.


@pytest.mark.parametrize(
    ("url", "file", "synchronous"),
    [
        ("sqlite:///app.db", Path("app.db").absolute(), "FULL"),
        ("sqlite:///data/app.db", Path("data/app.db").absolute(), "FULL"),
        ("sqlite:////var/lib/app.db", Path("/var/lib/app.db"), "FULL"),
        ("sqlite:///app.db?synchronous=normal", Path("app.db").absolute(), "NORMAL"),
        ("sqlite:///app.db?synchronous=EXTRA", Path("app.db").absolute(), "EXTRA"),
        ("sqlite:///with%20space%23.db", Path("with space#.db").absolute(), "FULL"),
    ],
)
def test_a_url_names_a_file_and_how_hard_it_is_synced(url: str, file: Path, synchronous: str) -> None:
    assert location.parse(url) == (file, synchronous)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite://app.db",
        "sqlite:app.db",
        "sqlite:///:memory:",
        "sqlite:///app.db#1",
        "sqlite:///app%00.db",
        "sqlite:///app.db?synchronous=maybe",
        "sqlite:///app.db?synchronous=",
        "sqlite:///app.db?mode=ro",
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="SQLite"):
        location.parse(url)


def test_a_link_to_a_file_is_refused_with_the_path_to_use(tmp_path: Path) -> None:
    """Every write failed there, because no log lies beside a link."""
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "jobs.db")
    with pytest.raises(ConfigurationError, match=str(tmp_path.resolve() / "jobs.db")):
        SqliteEngine(f"sqlite:///{link}").open()


MOUNTS = r"""
/dev/sda1 / ext4 rw 0 0
server:/export /mnt/share nfs4 rw 0 0
/dev/sdb1 /mnt/share/local xfs rw 0 0
//nas/x /mnt/with\040space cifs rw 0 0
nas:/y /mnt/дані nfs rw 0 0
broken line
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/deep/er", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/share/local/x", "xfs"),
        ("/mnt/with space", "cifs"),
        ("/mnt/дані/x", "nfs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(
    tmp_path: Path, folder: str, kind: str
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS, encoding="utf-8")
    assert location.filesystem_of(Path(folder), str(mounts)) == kind


def test_where_mounts_cannot_be_read_nothing_is_claimed_about_them(tmp_path: Path) -> None:
    assert location.filesystem_of(tmp_path, str(tmp_path / "missing")) == ""


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "filesystem_of", lambda folder: "nfs4")
    with pytest.raises(ConfigurationError, match=r"network file system \(nfs4\).*postgresql"):
        SqliteEngine(f"sqlite:///{tmp_path}/test.db").open()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_a_folder_and_an_unwritable_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        SqliteEngine(f"sqlite:///{tmp_path}/missing/test.db").open()
    with pytest.raises(ConfigurationError, match="is a folder"):
        SqliteEngine(f"sqlite:///{tmp_path}").open()
    # A superuser may write everywhere, so the system is asked through this name.
    monkeypatch.setattr(location.os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(ConfigurationError, match="not writable by this user"):
        SqliteEngine(f"sqlite:///{tmp_path}/test.db").open()


def test_a_lock_file_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "test.db.lock").mkdir()
    with pytest.raises(ConfigurationError, match=r"lock file .*test\.db\.lock cannot be opened"):
        SqliteEngine(f"sqlite:///{tmp_path}/test.db").open()
