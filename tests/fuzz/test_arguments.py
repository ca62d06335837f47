"""No arguments make the command line stumble: an answer, or an exit code that its help names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from commandbus.interfaces.cli import target
from commandbus.interfaces.cli.exits import Exit
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli
from tests.fuzz.fuzzing import fuzzed, texts

COMMANDS = (
    "send orders ship",
    "send",
    "list",
    "show",
    "audit",
    "why",
    "cancel",
    "batch list",
    "process list",
    "schedule list",
    "schedule add",
    "workers",
    "queue pause",
    "queue stats",
    "tsq list",
    "tsq retry",
    "breaker list",
    "limit set",
)
word = st.one_of(
    texts.filter(lambda text: "\0" not in text),
    st.sampled_from(["--json", "--help", "--domain", "--limit", "-1", "--data", "{", "orders", "--"]),
)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMMANDBUS_URL", f"sqlite:///{tmp_path}/bus.db?synchronous=off")
    monkeypatch.delenv("COMMANDBUS_APP", raising=False)
    monkeypatch.setattr(target, "chosen_url", None)
    with SyncCommandBus() as bus:
        bus.send("orders", "ship")
    return Cli()


@fuzzed(command=st.sampled_from(COMMANDS), words=st.lists(word, max_size=4))
def test_every_line_is_answered(cli: Cli, command: str, words: list[str]) -> None:
    ran = cli(*command.split(), *words, code=None)
    assert ran.code in set(Exit), (command, words, ran)
    assert "Traceback" not in ran.err
