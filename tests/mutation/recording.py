"""Which test runs which line: recorded by marks in the source, kept in build/mutation.

There are two groups: tests that need no server, and those on PostgreSQL, which take longer and are
recorded only when a mutant needs them. A test file is recorded again when it changes. When the source
changes, the recorded lines are mapped to the lines of the new text, so that a recording stays usable.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.mutation.marking import blocks_of

EMBEDDED, SERVER = "embedded", "server"
TESTS = {
    EMBEDDED: ("unit", "conformance", "simulation", "stateful", "telemetry", "health", "integration"),
    SERVER: ("postgres", "pgmq", "conformance"),
}
"""Recorded folders. Left out are tests that start many processes: they take long, and a recording does
not see what other processes run."""
PYTEST = (
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "pytest_asyncio.plugin",
    "-p",
    "pytest_timeout",
)
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""No other plugins: importing them takes four times as long as most tests of a mutant."""
FOLDER, GROUP = "MUTATION_FOLDER", "MUTATION_GROUP"
"""Name the folder of the recording, and which tests of the files are recorded."""
PROCESSES = os.cpu_count() or 1
"""Recorded at the same time, a part of the files in each."""
NEEDS_SERVER = re.compile(r"^tests/(postgres|pgmq)/|\[.*(postgres|pgmq)")
"""Tests of the second group."""
IMPORT = ""
"""In place of a test: the line runs on import."""


@dataclass(frozen=True)
class Recorded:
    """What the tests of one file ran."""

    tests: str
    """The digest of the test file."""
    sources: dict[str, str]
    """The digest of each source file."""
    seconds: dict[str, float]
    """The processor time of each test. One that fails, as on a busy machine, is there too: a test only
    kills a mutant if it passes on the original."""
    ran: dict[str, dict[str, str]]
    """For each source file and test the bits of the blocks that ran."""


class Recording:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / "build" / "mutation" / "recording"
        self._texts = root / "build" / "mutation" / "sources"
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._moved: dict[tuple[str, str], list[list[int]]] = {}

    def forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def refresh(self, group: str, environment: dict[str, str], ends: float) -> bool:
        """Record the test files that are new or have changed, until the given time; True when done."""
        missing = [file for file in self._test_files(group) if self._is_missing(group, file)]
        if missing and time.monotonic() < ends:
            print(f"recording {len(missing)} test files, {group}", flush=True)
            self._record(group, missing, environment, ends)
            self._lines.clear()
            self.__dict__.pop("_recorded", None)
            self.__dict__.pop("seconds", None)
            missing = [file for file in missing if self._is_missing(group, file)]
        return not missing

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The processor time of each test."""
        found: dict[str, float] = {}
        for recorded in self._recorded:
            found |= recorded.seconds
        return found

    def lines(self, path: str) -> dict[int, set[str]]:
        """The tests that run each line of a source file, lines as they are now."""
        if path not in self._lines:
            found: dict[int, set[str]] = defaultdict(set)
            for recorded in self._recorded:
                sha = recorded.sources.get(path)
                if sha is None:
                    continue
                blocks = self._blocks(path, sha)
                tests: dict[int, list[str]] = defaultdict(list)
                for test, bits in recorded.ran.get(path, {}).items():
                    for number, bit in enumerate(reversed(f"{int(bits, 16):b}")):
                        if bit == "1":
                            tests[number].append(test)
                for number, ran in tests.items():
                    for line in blocks[number]:
                        found[line].update(ran)
            self._lines[path] = found
        return self._lines[path]

    @cached_property
    def _recorded(self) -> list[Recorded]:
        """What is recorded of the test files that still exist."""
        files = [self._file(group, file) for group in TESTS for file in self._test_files(group)]
        found: list[Recorded] = []
        for file in files:
            if file.exists():
                values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
                found.append(Recorded(**values))
        return found

    def _test_files(self, group: str) -> list[str]:
        return [
            str(path.relative_to(self._root))
            for folder in TESTS[group]
            for path in sorted((self._root / "tests" / folder).rglob("test_*.py"))
        ]

    def _file(self, group: str, file: str) -> Path:
        return self._folder / f"{group}.{file.replace('/', '.')}.json"

    def _is_missing(self, group: str, file: str) -> bool:
        recorded = self._file(group, file)
        if not recorded.exists():
            return True
        return bool(json.loads(recorded.read_text())["tests"] != digest(self._root, file))

    def _record(self, group: str, files: list[str], environment: dict[str, str], ends: float) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._keep_sources()
        command = [sys.executable, "-m", *PYTEST, "-p", "tests.mutation.recorder", "-m", "not slow"]
        settings = {
            **ALONE,
            FOLDER: str(self._folder),
            GROUP: group,
            "PYTHONPATH": f"{self._root / 'src'}{os.pathsep}{self._root}",
        }
        with (self._folder / f"{group}.txt").open("w") as output:
            processes = [
                subprocess.Popen(
                    [*command, *files[number::PROCESSES]],
                    cwd=self._root,
                    env=os.environ | environment | settings,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for number in range(min(PROCESSES, len(files)))
            ]
            try:
                for process in processes:
                    process.wait(None if ends == float("inf") else max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass  # the files that were finished are recorded
            finally:
                for process in processes:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait()

    def _keep_sources(self) -> None:
        """Copies the source files, named by their content."""
        self._texts.mkdir(parents=True, exist_ok=True)
        for path, sha in source_digests(self._root).items():
            if not (self._texts / sha).exists():
                (self._texts / sha).write_bytes((self._root / path).read_bytes())

    def _blocks(self, path: str, sha: str) -> list[list[int]]:
        """The lines that the blocks of a recorded source have today."""
        key = (path, sha)
        if key not in self._moved:
            text = (self._texts / sha).read_text(encoding="utf-8")
            to = moved(text, (self._root / path).read_text(encoding="utf-8"))
            self._moved[key] = [[n for line in lines for n in to[line]] for lines in blocks_of(text)]
        return self._moved[key]


def moved(before: str, now: str) -> dict[int, list[int]]:
    """For each line its lines in the new text; a changed block maps to all of its new lines."""
    found: dict[int, list[int]] = {}
    matcher = difflib.SequenceMatcher(None, before.splitlines(), now.splitlines(), autojunk=False)
    for tag, old, old_end, new, new_end in matcher.get_opcodes():
        for number, line in enumerate(range(old, old_end)):
            same = range(new + number, new + number + 1)
            found[line + 1] = [to + 1 for to in (same if tag == "equal" else range(new, new_end))]
    return found


def digest(root: Path, file: str) -> str:
    """Of a test file and, for the conformance suite, of the module that it runs."""
    found = hashlib.sha256((root / file).read_bytes())
    suite = root / "src/commandbus/testing/conformance" / Path(file).name.removeprefix("test_")
    if file.startswith("tests/conformance/") and suite.exists():
        found.update(suite.read_bytes())
    return found.hexdigest()[:16]


def source_digests(root: Path) -> dict[str, str]:
    """Of every source file, by its path."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted((root / "src").rglob("*.py"))
    }
