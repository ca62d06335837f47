"""A store in a file, a bus on it, and the command line to be tested."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from commandbus.interfaces.cli import output, target
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bus.db'}"


@pytest.fixture
def bus(url: str) -> Iterator[SyncCommandBus]:
    with SyncCommandBus(url) as opened:
        yield opened


@pytest.fixture
def cli(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in an empty folder, on the store of `url`, without a terminal."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COMMANDBUS_URL", url)
    monkeypatch.delenv("COMMANDBUS_APP", raising=False)
    monkeypatch.setattr(target, "chosen_url", None)
    monkeypatch.setattr(target, "chosen_context", None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Cli()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Lets commands believe that a person looks at their output; set COLUMNS for the width."""
    monkeypatch.setattr(output, "is_terminal", lambda stream=None: True)
    monkeypatch.setenv("COLUMNS", "80")
    return monkeypatch
