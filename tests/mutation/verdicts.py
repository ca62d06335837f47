"""Verdicts that are kept in build/mutation, so that an interrupted run goes on where it was.

A kill is kept while the text of the mutated file stays the same. A survivor is tried again as soon as
the tests that run its line change.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from tests.mutation.mutants import Mutant
from tests.mutation.trying import Fate, Verdict


class Verdicts:
    def __init__(self, root: Path, *, forget: bool = False) -> None:
        self._root = root
        self._file = root / "build" / "mutation" / "verdicts.jsonl"
        if forget:
            self._file.unlink(missing_ok=True)
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        self._known = {entry["key"]: entry for entry in map(json.loads, lines)}

    def find(self, mutant: Mutant, tests: list[str]) -> Verdict | None:
        entry = self._known.get(mutant.key)
        if entry is None or entry["source"] != self._source(mutant):
            return None
        fate = Fate(entry["fate"])
        if fate in (Fate.SURVIVED, Fate.UNTESTED) and entry["tests"] != self._tests(tests):
            return None
        return Verdict(fate, entry["seconds"], entry["by"], entry["why"])

    def keep(self, mutant: Mutant, tests: list[str], verdict: Verdict) -> None:
        entry = {
            "key": mutant.key,
            "source": self._source(mutant),
            "tests": self._tests(tests),
            **asdict(verdict),
            "fate": verdict.fate.value,
        }
        self._known[mutant.key] = entry
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _source(self, mutant: Mutant) -> str:
        return hashlib.sha256((self._root / mutant.path).read_bytes()).hexdigest()[:16]

    def _tests(self, tests: list[str]) -> str:
        """Of their names and of the files they are in."""
        found = hashlib.sha256(json.dumps(tests).encode())
        for file in sorted({test.partition("::")[0] for test in tests}):
            found.update((self._root / file).read_bytes())
            suite = Path("src/commandbus/testing/conformance", Path(file).name.removeprefix("test_"))
            if (self._root / suite).exists():
                found.update((self._root / suite).read_bytes())
        return found.hexdigest()[:16]
