"""Which test runs which line: recorded with coverage, one test file at a time, kept in build/mutation.

A test file is recorded again when it changes. When the source changes, the recorded lines are mapped to
the lines of the new text, so that a recording stays usable while the source moves on.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from functools import cache, cached_property
from pathlib import Path

import coverage

from tests.mutation.recorder import DURATIONS

TESTS = (
    "tests/unit",
    "tests/conformance",
    "tests/telemetry",
    "tests/health",
    "tests/integration",
    "tests/pgmq",
    "tests/postgres",
    "tests/simulation",
)
"""Recorded folders. Left out are tests that start many processes: they take long, and coverage does not
see what other processes run."""
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
CONFIGURATION = """[run]
source_pkgs = commandbus
data_file = {data}
branch = false
concurrency = thread
relative_files = true
"""


class Recording:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / "build" / "mutation" / "recording"
        self._texts = root / "build" / "mutation" / "sources"
        self._lines: dict[str, dict[int, set[str]]] = {}

    def forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def refresh(self, environment: dict[str, str], ends: float) -> bool:
        """Record the test files that are new or have changed, until the given time; True when done."""
        for file in _test_files(self._root):
            folder = self._folder / file.replace("/", ".")
            state = folder / "state.json"
            digest = self._digest(file)
            if not state.exists() or json.loads(state.read_text())["tests"] != digest:
                if time.monotonic() > ends:
                    return False
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                print(f"recording {file}", flush=True)
                sources = self._keep_sources()
                self._record(file, folder, environment)
                state.write_text(json.dumps({"tests": digest, "sources": sources}))
        return True

    @cached_property
    def _files(self) -> list[Path]:
        """What is recorded of the test files that still exist."""
        folders = [self._folder / file.replace("/", ".") for file in _test_files(self._root)]
        parts = ("state.json", "durations.json", "coverage")
        return [folder for folder in folders if all((folder / part).exists() for part in parts)]

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The duration of each test that passed."""
        found: dict[str, float] = {}
        for folder in self._files:
            found |= json.loads((folder / "durations.json").read_text())
        return found

    def lines(self, path: str) -> dict[int, set[str]]:
        """The tests that run each line of a source file, lines as they are now."""
        if path not in self._lines:
            found: dict[int, set[str]] = defaultdict(set)
            for folder in self._files:
                sha = json.loads((folder / "state.json").read_text())["sources"].get(path)
                if sha is None:
                    continue
                moved = self._moved(path, sha)
                data = coverage.CoverageData(str(folder / "coverage"))
                data.read()
                for line, tests in data.contexts_by_lineno(path).items():
                    for now in moved.get(line, ()):
                        found[now].update(tests)
            self._lines[path] = found
        return self._lines[path]

    def _record(self, file: str, folder: Path, environment: dict[str, str]) -> None:
        configuration = folder / "coveragerc"
        configuration.write_text(CONFIGURATION.format(data=folder / "coverage"), encoding="utf-8")
        command = [
            sys.executable, "-m", "coverage", "run", f"--rcfile={configuration}", "-m", *PYTEST,
            "-p", "tests.mutation.recorder", "-m", "not slow", file,
        ]  # fmt: skip
        settings = {
            **ALONE,
            DURATIONS: str(folder / "durations.json"),
            "PYTHONPATH": f"{self._root / 'src'}{os.pathsep}{self._root}",
        }
        # Tests that fail here, as on a busy machine, are left out: see `recorder`.
        with (folder / "output.txt").open("w") as output:
            subprocess.run(
                command,
                cwd=self._root,
                env=os.environ | environment | settings,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )

    def _digest(self, file: str) -> str:
        """Of a test file and, for the conformance suite, of the module that it runs."""
        found = hashlib.sha256((self._root / file).read_bytes())
        name = Path(file).name.removeprefix("test_")
        suite = self._root / "src/commandbus/testing/conformance" / name
        if file.startswith("tests/conformance/") and suite.exists():
            found.update(suite.read_bytes())
        return found.hexdigest()[:16]

    def _keep_sources(self) -> dict[str, str]:
        """Copies the source files, named by their content."""
        self._texts.mkdir(parents=True, exist_ok=True)
        found: dict[str, str] = {}
        for path in sorted((self._root / "src").rglob("*.py")):
            text = path.read_bytes()
            sha = hashlib.sha256(text).hexdigest()[:16]
            found[str(path.relative_to(self._root))] = sha
            if not (self._texts / sha).exists():
                (self._texts / sha).write_bytes(text)
        return found

    @cache  # noqa: B019 - one recording lives as long as the program
    def _moved(self, path: str, sha: str) -> dict[int, list[int]]:
        """For each recorded line its lines today; a changed block maps to all of its new lines."""
        before = (self._texts / sha).read_text(encoding="utf-8").splitlines()
        now = (self._root / path).read_text(encoding="utf-8").splitlines()
        moved: dict[int, list[int]] = {}
        matcher = difflib.SequenceMatcher(None, before, now, autojunk=False)
        for tag, old, old_end, new, new_end in matcher.get_opcodes():
            for number, line in enumerate(range(old, old_end)):
                same = range(new + number, new + number + 1)
                moved[line + 1] = [to + 1 for to in (same if tag == "equal" else range(new, new_end))]
        return moved


def _test_files(root: Path) -> list[str]:
    return [
        str(path.relative_to(root))
        for folder in TESTS
        for path in sorted((root / folder).glob("test_*.py"))
    ]
