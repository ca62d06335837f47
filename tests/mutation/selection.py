"""Which tests to run for a mutant: those that ran its line in a recording, quick ones first."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, zip_longest
from pathlib import Path

import coverage

from tests.mutation.mutants import Mutant
from tests.mutation.recorder import DURATIONS

TESTS = (
    "tests/unit",
    "tests/conformance",
    "tests/health",
    "tests/integration",
    "tests/postgres",
    "tests/pgmq",
    "tests/simulation",
    "tests/races",
    "tests/telemetry",
)
"""Recorded once, each test as a context of its own. Left out are those that start many processes: they
take long, and what only they run is not seen here."""
SECONDS_MAX = 40.0
"""Tests for one mutant take so long at most, as recorded."""
COUNT_MAX = 300
FIRST, FIRST_EACH = 3, 40
"""Files that are tried first, and tests of each."""
SLOWEST = 8.0
"""A test that takes longer is left out."""
CONFIGURATION = """[run]
source_pkgs = commandbus
data_file = {data}
branch = false
concurrency = thread
"""


class Selection:
    """Contexts of lines, from a recording."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._seconds: dict[str, float] = json.loads((folder / "durations.json").read_text())
        self._data = coverage.CoverageData(str(folder / "coverage"))
        self._data.read()
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests_for(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """A few of the files nearest by name, then more, one of each file in turn: most mutants
        die at the first, and importing every test file takes longer than that."""
        lines = self._of(mutant.path)
        wanted = {mutant.line, *range(mutant.line, mutant.line + mutant.old.count("\n") + 1)}
        if mutant.constant is not None:
            # A constant is set on import: its users are what can show it.
            wanted |= self._users(mutant.path, mutant.constant, lines)
        found = {test for line in wanted for test in lines.get(line, ()) if test}
        if not found:
            # Written when the module was imported, like a default of a field: whoever uses the file.
            source = (self._root / mutant.path).read_text(encoding="utf-8").splitlines()
            if source[mutant.line - 1].startswith((" ", "\t")) and mutant.line in lines:
                found = {test for tests in lines.values() for test in tests if test}
        return self._in_turn(found, Path(mutant.path).stem)

    def _of(self, path: str) -> dict[int, list[str]]:
        if path not in self._lines:
            self._lines[path] = self._data.contexts_by_lineno(str(self._root / path))
        return self._lines[path]

    def _users(self, path: str, name: str, lines: Iterable[int]) -> set[int]:
        source = (self._root / path).read_text(encoding="utf-8").splitlines()
        word = re.compile(rf"\b{re.escape(name)}\b")
        return {line for line in lines if line <= len(source) and word.search(source[line - 1])}

    def _in_turn(self, tests: set[str], stem: str) -> tuple[list[str], list[str]]:
        files: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda test: (self._seconds.get(test, SLOWEST), test)):
            if self._seconds.get(test, SLOWEST) < SLOWEST:
                files[test.partition("::")[0]].append(test)

        def nearness(file: str) -> tuple[bool, bool, float]:
            quickest = self._seconds[files[file][0]]
            return stem not in Path(file).stem, not file.startswith("tests/unit"), quickest

        order = sorted(files, key=nearness)
        first = self._bounded(chain.from_iterable(files[file][:FIRST_EACH] for file in order[:FIRST]))
        turns = zip_longest(*(files[file] for file in order))
        rest = (test for turn in turns for test in turn if test is not None and test not in first)
        return first, self._bounded(rest)

    def _bounded(self, tests: Iterable[str]) -> list[str]:
        chosen: list[str] = []
        seconds = 0.0
        for test in tests:
            seconds += self._seconds[test]
            if seconds > SECONDS_MAX or len(chosen) >= COUNT_MAX:
                break
            chosen.append(test)
        return chosen


def digest(root: Path) -> str:
    """Of source and tests: a recording is good for these."""
    found = hashlib.sha256()
    for path in sorted([*(root / "src").rglob("*.py"), *(root / "src").rglob("*.sql")]):
        found.update(path.read_bytes())
    for folder in TESTS:
        for path in sorted((root / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def record(root: Path, folder: Path, environment: dict[str, str]) -> None:
    """Run all tests once, each in a context of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "coveragerc"
    configuration.write_text(CONFIGURATION.format(data=folder / "coverage"), encoding="utf-8")
    command = [
        sys.executable, "-m", "coverage", "run", f"--rcfile={configuration}", "-m", "pytest", "-q",
        "-n", "0", "-p", "no:cacheprovider", "-p", "tests.mutation.recorder", *TESTS,
    ]  # fmt: skip
    told = {
        DURATIONS: str(folder / "durations.json"),
        "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
    }
    # Some may fail on a busy machine; these are left out, see `recorder`.
    subprocess.run(command, cwd=root, env=os.environ | environment | told, check=False)
