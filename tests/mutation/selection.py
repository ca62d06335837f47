"""Which tests to run for a mutant: those that ran its line in a recording, quick ones first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from tests.mutation.mutants import Mutant
from tests.mutation.recording import Recording

SECONDS_MAX = 30.0
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

    def tests_for(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """A few files that are nearest by name, then one test of each file in turn: most mutants are
        killed by the first, and importing every test file takes longer than running these."""
        lines = self._recording.lines(mutant.path)
        last = mutant.line + mutant.old.count("\n")
        wanted = set(range(mutant.line, last + 1))
        if mutant.constant is not None:
            # A constant is set on import: the lines that use it can show a change.
            wanted |= self._users(mutant.path, mutant.constant, lines)
        found = {test for line in wanted for test in lines.get(line, ()) if test}
        if not found and any("" in lines.get(line, ()) for line in wanted):
            # Run on import, like the default of a field: all tests that run any line of the file.
            found = {test for tests in lines.values() for test in tests if test}
        return self._in_turn(self._quick(found, mutant.path), Path(mutant.path).stem)

    def _quick(self, tests: set[str], path: str) -> set[str]:
        """Those that passed quickly; with PostgreSQL only for its own lines, or where no other runs."""
        quick = {test for test in tests if self._seconds.get(test, SLOWEST) < SLOWEST}
        without = {test for test in quick if not SERVER.search(test)}
        return quick if "/postgres/" in path or not without else without

    def _users(self, path: str, name: str, lines: Iterable[int]) -> set[int]:
        source = (self._root / path).read_text(encoding="utf-8").splitlines()
        word = re.compile(rf"\b{re.escape(name)}\b")
        return {line for line in lines if line <= len(source) and word.search(source[line - 1])}

    def _in_turn(self, tests: set[str], stem: str) -> tuple[list[str], list[str]]:
        files: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda test: (self._seconds[test], test)):
            files[test.partition("::")[0]].append(test)

        def nearness(file: str) -> tuple[bool, bool, float]:
            quickest = self._seconds[files[file][0]]
            return stem not in Path(file).stem, not file.startswith("tests/unit"), quickest

        order = sorted(files, key=nearness)
        first = self._bounded(test for file in order[:FIRST] for test in files[file][:FIRST_EACH])
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
