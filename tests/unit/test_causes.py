"""Why a worker process ended, in words."""

import signal
from pathlib import Path

import pytest

from commandbus.runtimes import recovery
from commandbus.runtimes.recovery import cause_of, memory_kills


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-77, "was killed by signal 77"),
        (70, "ended with exit code 70"),
    ],
)
def test_a_signal_and_an_exit_code_are_named(code: int, words: str) -> None:
    assert cause_of(4711, code) == f"Its worker process 4711 {words}"


def test_a_kill_of_the_kernel_for_memory_is_named() -> None:
    assert cause_of(1, -signal.SIGKILL, killed_for_memory=True).endswith("because memory ran out")
    assert "memory" not in cause_of(1, -signal.SIGSEGV, killed_for_memory=True)


@pytest.mark.parametrize("content", ["low 0\noom_kill 3\n", "oom_kill_disable 0\noom_kill 3\n"])
def test_kills_for_memory_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "memory.events"
    file.write_text(content)
    monkeypatch.setattr(recovery, "_memory_files", lambda: [tmp_path / "missing", file])
    assert memory_kills() == 3


def test_without_a_count_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recovery, "_memory_files", lambda: [tmp_path / "missing"])
    assert memory_kills() == 0
