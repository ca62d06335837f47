"""A measurement names the state of the code that it is about."""

import subprocess
from pathlib import Path

from tests.support.revision import revision


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_named_and_so_are_changes(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.py").write_text("1")
    git(tmp_path, "init")
    assert revision(tmp_path) == "an unknown commit"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "Begin", "--date=2030-05-17T08:00Z")
    named = revision(tmp_path)
    assert named.startswith("commit ")
    assert not named.endswith("with changes")
    (source / "a.py").write_text("2")
    assert revision(tmp_path) == f"{named}, with changes"
