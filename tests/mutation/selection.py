"""Which tests to run for a mutant: those that ran its line in a recording, quick ones first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from tests.mutation.mutants import Mutant
from tests.mutation.recording import Recording

SECONDS_MAX = 20.0
"""Limit for the recorded durations of the tests of one mutant."""
COUNT_MAX = 300
FIRST, FIRST_EACH = 3, 30
"""Files that are tried first, and tests of each."""
SLOWEST = 6.0
"""Slower tests are left out."""
SERVER = re.compile(r"^tests/(postgres|pgmq)/|\[.*(postgres|pgmq)")
"""Tests that need PostgreSQL."""


class Selection:
    def __init__(self, root: Path, recording: Recording) -> None:
        self._root, self._recording = root, recording

    @property
    def _seconds(self) -> dict[str, float]:
        return self._recording.seconds

    def tests_for(self, mutant: Mutant) -> list[list[str]]:
        """The runs of tests that are tried one after another. Unless the line is PostgreSQL's own,
        tests with it come last, and those that other engines have too only where no other runs it."""
        if mutant.test is not None:
            return [[mutant.test]]
        lines = self._recording.lines(mutant.path)
        last = mutant.line + mutant.old.count("\n")
        wanted = set(range(mutant.line, last + 1))
        if mutant.constant is not None:
            # A constant is set on import: the lines that use it can show a change.
            wanted |= self._users(mutant.path, mutant.constant, lines)
        found = {test for line in wanted for test in lines.get(line, ()) if test}
        if not found and any("" in lines.get(line, ()) for line in wanted):
            # Run on import, like the default of a field: tests of the file and of those that import it.
            users = [lines, *map(self._recording.lines, self._importers(mutant.path))]
            found = {test for file in users for tests in file.values() for test in tests if test}
        quick = {test for test in found if self._seconds.get(test, SLOWEST) < SLOWEST}
        later = {test for test in quick if "/postgres/" not in mutant.path and SERVER.search(test)}
        runs = self._in_turn(quick - later, Path(mutant.path).stem)
        own = {test for test in later if test.startswith(("tests/postgres/", "tests/pgmq/"))}
        runs += self._in_turn(own if quick - later else later, Path(mutant.path).stem)
        return [tests for tests in runs if tests]

    def _importers(self, path: str) -> list[str]:
        module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        files = (self._root / Path(path).parent).glob("*.py")
        return [
            str(file.relative_to(self._root))
            for file in sorted(files)
            if f"from {module} import" in file.read_text(encoding="utf-8")
        ]

    def _users(self, path: str, name: str, lines: Iterable[int]) -> set[int]:
        source = (self._root / path).read_text(encoding="utf-8").splitlines()
        word = re.compile(rf"\b{re.escape(name)}\b")
        return {line for line in lines if line <= len(source) and word.search(source[line - 1])}

    def _in_turn(self, tests: set[str], stem: str) -> list[list[str]]:
        """A few files that are nearest by name, then one test of each file in turn: most mutants are
        killed by the first, and importing every test file takes longer than running these."""
        files: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda test: (self._seconds[test], test)):
            files[test.partition("::")[0]].append(test)

        def nearness(file: str) -> tuple[bool, bool, float]:
            quickest = self._seconds[files[file][0]]
            return stem not in file, not file.startswith("tests/unit"), quickest

        order = sorted(files, key=nearness)
        first = self._bounded(test for file in order[:FIRST] for test in files[file][:FIRST_EACH])
        turns = zip_longest(*(files[file] for file in order))
        rest = (test for turn in turns for test in turn if test is not None and test not in first)
        return [first, self._bounded(rest)]

    def _bounded(self, tests: Iterable[str]) -> list[str]:
        chosen: list[str] = []
        seconds = 0.0
        for test in tests:
            seconds += self._seconds[test]
            if seconds > SECONDS_MAX or len(chosen) >= COUNT_MAX:
                break
            chosen.append(test)
        return chosen
