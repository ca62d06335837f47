"""The types of the public surface, as mypy --strict and pyright see them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy.project import ROOT

SURFACE = Path(__file__).with_name("surface.py")
MARK = re.compile(r"# error$")
SECONDS = 300

Check = Callable[[Path], dict[int, str]]


def run(*command: str) -> str:
    made = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert made.returncode in (0, 1), made.stdout + made.stderr
    return made.stdout


def reported(output: str, path: Path) -> dict[int, str]:
    """The errors about a file by line."""
    found = re.findall(
        rf"^\s*{re.escape(str(path))}:(\d+)[:\d]* -? ?error: (.*)$", output, re.MULTILINE
    )
    return {int(line): text for line, text in found}


def mypy(path: Path) -> dict[int, str]:
    pytest.importorskip("mypy")
    # Modules are cached by name, and other files may have the same one.
    cache = [] if path == SURFACE else [f"--cache-dir={os.devnull}"]
    return reported(run("mypy", "--strict", "--show-absolute-path", *cache, str(path)), path)


def pyright(path: Path) -> dict[int, str]:
    pytest.importorskip("pyright")
    try:
        subprocess.run(
            [sys.executable, "-m", "pyright", "--version"], check=True, capture_output=True, timeout=60
        )
    except (subprocess.SubprocessError, OSError):
        pytest.skip("pyright cannot start on this machine")
    return reported(run("pyright", str(path)), path)


def difference(check: Check, path: Path) -> list[str]:
    """Lines about which a checker says something else than their marks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if MARK.search(line)}
    assert marked, f"no line of {path.name} is marked"
    errors = check(path)
    accepted = [
        f"{n}: accepted, but marked: {lines[n - 1].strip()}" for n in sorted(marked - set(errors))
    ]
    refused = [f"{n}: {errors[n]}: {lines[n - 1].strip()}" for n in sorted(set(errors) - marked)]
    return accepted + refused


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("check", [mypy, pyright])
def test_checkers_refuse_the_marked_lines_and_no_others(check: Check) -> None:
    assert difference(check, SURFACE) == []


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_wrong_mark_is_noticed(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("a: int = 1  # error\nb: int = ''\nc: int = ''  # error\n")
    first, second = difference(check, path)
    assert first.startswith("1: accepted, but marked")
    assert second.startswith("2: ")
