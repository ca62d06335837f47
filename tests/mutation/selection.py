"""Which tests to run for a mutant: those that ran its line in a recording, quick ones first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from tests.mutation.mutants import ROOMS, Mutant, files_of
from tests.mutation.patching import body_of_signature, place_of
from tests.mutation.recording import IMPORT, NEEDS_SERVER, Recording

SECONDS_MAX = 12.0
"""Limit for the recorded processor time of the tests of one mutant."""
COUNT_MAX = 400
FIRST, FIRST_EACH = 3, 20
"""Files that are tried first, and tests of each."""
ATTRIBUTE = re.compile(r"self\.(\w+)\b.* = ")
NAMED_MAX = 3
"""Limit for the test files that are tried because they name the module."""


class Selection:
    def __init__(self, root: Path, recording: Recording) -> None:
        self._root, self._recording = root, recording

    @property
    def _seconds(self) -> dict[str, float]:
        return self._recording.seconds

    def runs_on_import(self, mutant: Mutant) -> bool:
        """Whether its line is executed when the module is imported, so that the module has to be
        imported again to see the change."""
        lines = self._recording.lines(mutant.path)
        if any(IMPORT in lines.get(line, ()) for line in _lines(mutant)):
            return True
        return place_of(self._source(mutant), mutant.start) is None

    def is_reached(self, mutant: Mutant) -> bool:
        """Whether a recorded test runs its line."""
        return bool(self._reaching(mutant))

    def tests_for(self, mutant: Mutant) -> list[str]:
        """In the order in which they are tried. Unless the line is PostgreSQL's own, tests with it
        come last, and those that other engines have too only where no other runs it."""
        if mutant.test is not None:
            return [mutant.test]
        found = self._reaching(mutant)
        later = {t for t in found if "/postgres/" not in mutant.path and NEEDS_SERVER.search(t)}
        stem = Path(mutant.path).stem
        # Where an attribute is set, first those that use it.
        using = self._using_attribute(mutant) & found - later
        tests = list(dict.fromkeys([*self._in_turn(using, stem), *self._in_turn(found - later, stem)]))
        own = {test for test in later if test.startswith(("tests/postgres/", "tests/pgmq/"))}
        more = self._in_turn(own if tests else later, stem)
        return [*self._bounded(tests), *self._bounded(more)] or self._naming(mutant)

    def _reaching(self, mutant: Mutant) -> set[str]:
        lines = self._recording.lines(mutant.path)
        wanted = set(_lines(mutant))
        if (body := body_of_signature(self._source(mutant), mutant.start)) is not None:
            wanted.add(body)
        # A constant is set on import: the lines that use it can show a change.
        found = set() if mutant.constant is None else self._using(mutant)
        found |= {test for line in wanted for test in lines.get(line, ())} - {IMPORT}
        if not found and self.runs_on_import(mutant):
            # Like the default of a field: tests of the file and of those that import it.
            users = [lines, *map(self._recording.lines, self._importers(mutant.path))]
            found = {test for file in users for tests in file.values() for test in tests}
        return found - {IMPORT}

    def _naming(self, mutant: Mutant) -> list[str]:
        """Where no recorded test runs its line, as in another process: tests of files that name its
        module, or are named like its package or itself."""
        path = Path(mutant.path)
        module = mutant.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        names = {f"test_{path.stem}", f"test_{path.parent.name}"}
        files = [
            str(file.relative_to(self._root))
            for file in sorted((self._root / "tests").rglob("test_*.py"))
            if file.stem in names or module in file.read_text(encoding="utf-8")
        ]
        quick = sorted(self._seconds, key=self._seconds.__getitem__)
        tests = [t for t in quick if t.partition("::")[0] in files and not NEEDS_SERVER.search(t)]
        return self._bounded(tests) or files[:NAMED_MAX]

    def _source(self, mutant: Mutant) -> str:
        return (self._root / mutant.path).read_text(encoding="utf-8")

    def _importers(self, path: str) -> list[str]:
        module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        files = (self._root / Path(path).parent).glob("*.py")
        return [
            str(file.relative_to(self._root))
            for file in sorted(files)
            if f"from {module} import" in file.read_text(encoding="utf-8")
        ]

    def _using(self, mutant: Mutant) -> set[str]:
        """The tests that run a line with the name of a constant, or with a field of that name."""
        name = re.escape(mutant.constant or "")
        word = re.compile(rf"\.{name}\b|\b{name}=" if "." in mutant.scope else rf"\b{name}\b")
        found: set[str] = set()
        for path in (path for room in ROOMS for path in files_of(self._root, room)):
            text = (self._root / path).read_text(encoding="utf-8")
            if word.search(text):
                lines = self._recording.lines(path)
                for number, line in enumerate(text.splitlines(), 1):
                    if number in lines and word.search(line):
                        found |= lines[number]
        return found - {IMPORT}

    def _using_attribute(self, mutant: Mutant) -> set[str]:
        """The tests that run another line with the attribute that this one sets."""
        found = ATTRIBUTE.match(mutant.old)
        if found is None:
            return set()
        lines = self._recording.lines(mutant.path)
        return {
            test
            for number, line in enumerate(self._source(mutant).splitlines(), 1)
            if number not in _lines(mutant) and re.search(rf"\bself\.{found[1]}\b", line)
            for test in lines.get(number, ())
        } - {IMPORT}

    def _in_turn(self, tests: set[str], stem: str) -> list[str]:
        """Of a few files that are nearest by name some tests, then all unit tests as quick ones, then
        one test of each file in turn: most mutants are killed by the first."""
        files: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda test: (self._seconds[test], test)):
            files[test.partition("::")[0]].append(test)

        def nearness(file: str) -> tuple[bool, bool, float]:
            quickest = self._seconds[files[file][0]]
            return stem not in file, not file.startswith("tests/unit"), quickest

        order = sorted(files, key=nearness)
        first = [test for file in order[:FIRST] for test in files[file][:FIRST_EACH]]
        unit = [test for file in order if file.startswith("tests/unit") for test in files[file]]
        turns = zip_longest(*(files[file] for file in order))
        return list(dict.fromkeys([*first, *unit, *(t for turn in turns for t in turn if t)]))

    def _bounded(self, tests: Iterable[str]) -> list[str]:
        chosen: list[str] = []
        seconds = 0.0
        for test in tests:
            if seconds + self._seconds[test] <= SECONDS_MAX:
                seconds += self._seconds[test]
                chosen.append(test)
        return chosen[:COUNT_MAX]


def _lines(mutant: Mutant) -> range:
    return range(mutant.line, mutant.line + mutant.old.count("\n") + 1)
