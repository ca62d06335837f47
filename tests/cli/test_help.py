"""Help is quick and complete; nothing is imported that is not needed."""

import subprocess
import sys
from pathlib import Path

import pytest

from commandbus import __version__
from commandbus.interfaces.cli.app import GROUPS, SECTIONS
from commandbus.interfaces.cli.exits import EXIT_CODES, Exit
from tests.cli.helpers import Cli, run, run_on_terminal

HEAVY = ("psycopg", "starlette", "rich", "sqlite3", "jinja2", "uvicorn")

PROBE = """
import sys
sys.argv = ["commandbus", "--help"]
from commandbus.interfaces.cli import main
try:
    main()
except SystemExit:
    print("loaded:", *sorted(m for m in sys.modules if "." not in m), file=sys.stderr)
"""

WITHOUT_EXTRA = """
import sys
sys.modules["typer"] = None
from commandbus.interfaces.cli import main
main()
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_loads_neither_engines_nor_rich() -> None:
    loaded = python(PROBE).stderr.split()
    assert "commandbus" in loaded
    assert not [module for module in HEAVY if module in loaded]


def test_help_names_every_command_and_exit_code(cli: Cli) -> None:
    out = cli("--help").out
    for names in SECTIONS.values():
        for name in names:
            assert f"  {name} " in out
    for code, meaning in EXIT_CODES.items():
        assert f"{code}  {meaning}" in " ".join(out.split("\n"))
    assert set(EXIT_CODES) == set(Exit)


@pytest.mark.parametrize(
    "command",
    [
        *([name] for section in SECTIONS.values() for name in section),
        *([group, name] for group, names in GROUPS.items() for name in names),
    ],
    ids=" ".join,
)
def test_every_command_has_help(cli: Cli, command: list[str]) -> None:
    out = cli(*command, "--help").out
    assert "Usage:" in out
    summaries = {name: text for section in SECTIONS.values() for name, text in section.items()}
    if len(command) == 1:
        assert summaries[command[0]] in " ".join(out.split())
    if command[0] not in (*GROUPS, "version", "promote") or (
        len(command) == 2 and command[0] != "context"
    ):
        assert "--url" in out


@pytest.mark.parametrize("group", GROUPS)
def test_the_summaries_of_a_group_are_whole(cli: Cli, group: str) -> None:
    assert "..." not in cli(group, "--help").out.partition("Commands:")[2]


def test_headings_stand_out_on_a_terminal_only(tmp_path: Path) -> None:
    assert "\x1b[1mUsage\x1b[0m:" in run_on_terminal("--help", folder=tmp_path, columns=80).out
    assert "\x1b" not in run("--help", folder=tmp_path).out


def test_without_the_extra_it_says_what_to_install() -> None:
    done = python(WITHOUT_EXTRA)
    assert done.returncode == 2
    assert "pip install 'durable-commandbus[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_version(cli: Cli) -> None:
    assert cli("version").out.strip() == cli("--version").out.strip() == __version__


def test_an_unknown_command_is_a_usage_error(cli: Cli) -> None:
    assert "nonsense" in cli("nonsense", code=2).err


def test_an_unknown_command_is_answered_with_those_it_may_mean(cli: Cli) -> None:
    assert "is it list?" in cli("lst", code=2).err
    assert "is it queue stats?" in cli("stats", code=2).err
    assert "there are list, stats, pause, resume, purge" in cli("queue", "show", code=2).err


def test_a_narrow_encoding_is_no_error(tmp_path: Path) -> None:
    ran = run("db", "upgrade", folder=tmp_path, PYTHONIOENCODING="ascii")
    assert ran.code == 0
    assert "the store is at" in ran.err


@pytest.mark.parametrize(
    ("words", "offered"), [("commandbus qu", "queue"), ("commandbus queue pa", "pause")]
)
def test_a_shell_completes_commands(tmp_path: Path, words: str, offered: str) -> None:
    ran = run(
        folder=tmp_path,
        _COMMANDBUS_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(words.count(" ")),
    )
    assert ran.out.split() == [offered]


def test_the_guide_has_every_exit_code() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guide" / "command-line.md"
    table = guide.read_text(encoding="utf-8").partition("## Exit codes")[2]
    told = {
        int(cells[1]): cells[2].strip()
        for line in table.splitlines()
        if (cells := line.split("|"))[1:] and cells[1].strip().isdigit()
    }
    assert told == EXIT_CODES
