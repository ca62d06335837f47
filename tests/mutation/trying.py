"""Copies of the tree in which mutants are tried, one after another."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from commandbus.testing.postgres import DSN_VARIABLE, PostgresServer, PostgresUnavailable
from tests.mutation.mutants import Mutant
from tests.mutation.selection import Selection, digest, record

COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md")
PATIENCE_SECONDS = 90.0
"""So long the tests of one mutant may take before it counts as hung; recorded, they take half."""
NO_TESTS = 5
"""pytest's exit code when nothing was run."""


class Fate(Enum):
    KILLED = "killed"
    HUNG = "hung"
    SURVIVED = "SURVIVED"
    UNTESTED = "UNTESTED"
    """No recorded test runs its line."""


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    fate: Fate
    seconds: float


class Bench:
    """One copy of the tree for each job, one PostgreSQL for all, and the recording."""

    def __init__(self, root: Path, jobs: int, *, fresh: bool, any_state: bool) -> None:
        self._root, self._jobs = root, jobs
        self._fresh, self._any_state = fresh, any_state
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._stack = contextlib.ExitStack()
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        with contextlib.suppress(PostgresUnavailable):
            server = self._stack.enter_context(PostgresServer.start())
            self._environment[DSN_VARIABLE] = server.dsn()
        self._selection = Selection(self._root, self._recording())
        for _ in range(self._jobs):
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mutation-")))
            for name in COPIED:
                source = self._root / name
                copy = shutil.copytree if source.is_dir() else shutil.copy2
                copy(source, folder / name)
            self._free.put(folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _recording(self) -> Path:
        """The folder with the recording of this state; made when there is none."""
        parent = self._root / "build" / "mutation"
        folder = parent / digest(self._root)
        known = sorted(parent.glob("*/durations.json"), key=lambda path: path.stat().st_mtime)
        if self._any_state and known and not self._fresh:
            return known[-1].parent
        if self._fresh or not (folder / "durations.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            print("recording which test runs which line …", flush=True)
            record(self._root, folder, self._environment)
        return folder

    def attempt(self, mutant: Mutant) -> Verdict:
        began = time.monotonic()
        first, rest = self._selection.tests_for(mutant)
        if not first:
            return Verdict(mutant, Fate.UNTESTED, 0.0)
        folder = self._free.get()
        file = folder / mutant.path
        source, stat = file.read_text(encoding="utf-8"), file.stat()
        try:
            file.write_text(mutant.apply(source), encoding="utf-8")
            fate = self._run(folder, first)
            if fate is Fate.SURVIVED and rest:
                fate = self._run(folder, rest)
        finally:
            file.write_text(source, encoding="utf-8")
            # As before, so that bytecode of the original is good again.
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            self._free.put(folder)
        return Verdict(mutant, fate, time.monotonic() - began)

    def _run(self, folder: Path, tests: list[str]) -> Fate:
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider",
            "-p", "no:randomly", *tests,
        ]  # fmt: skip
        paths = {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | self._environment | paths,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return Fate.HUNG
        finally:
            # Whatever it has started ends with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code == NO_TESTS:
            return Fate.UNTESTED
        return Fate.SURVIVED if code == 0 else Fate.KILLED
