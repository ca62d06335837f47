"""Why a worker process ended, in words."""

import signal
from pathlib import Path

import pytest

from commandbus.runtimes import recovery
from commandbus.runtimes.recovery import ProcessEnd, end_of, memory_kills

if not hasattr(signal, "SIGKILL"):  # on Windows
    pytest.skip("no signal ends a process there", allow_module_level=True)


@pytest.mark.parametrize(
    ("code", "words", "from_inside"),
    [
        (-signal.SIGKILL, "was killed by SIGKILL", False),
        (-signal.SIGTERM, "was killed by SIGTERM", False),
        (-signal.SIGSEGV, "was killed by SIGSEGV", True),
        (-signal.SIGABRT, "was killed by SIGABRT", True),
        (-77, "was killed by signal 77", True),
        (70, "ended with exit code 70", True),
    ],
)
def test_a_signal_and_an_exit_code_are_named(code: int, words: str, from_inside: bool) -> None:
    assert end_of(4711, code) == ProcessEnd(f"Its worker process 4711 {words}", from_inside)


def test_a_kill_of_the_kernel_for_memory_is_named() -> None:
    end = end_of(1, -signal.SIGKILL, killed_for_memory=True)
    assert end.cause.endswith("because memory ran out")
    assert end.from_inside
    assert "memory" not in end_of(1, -signal.SIGSEGV, killed_for_memory=True).cause


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
