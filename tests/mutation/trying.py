"""A copy of the tree in which mutants are tried, one after another."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from commandbus.testing.postgres import DSN_VARIABLE, PostgresServer, PostgresUnavailable
from tests.mutation.mutants import Mutant
from tests.mutation.recording import ALONE, PYTEST, Recording
from tests.mutation.selection import SLOWEST, Selection
from tests.mutation.trial import REPORT

NOT_COPIED = (".git", ".venv", "build", "dist", ".*_cache", ".hypothesis")
TEST_SECONDS = int(SLOWEST * 4)
"""Limit for one test. Recorded, each takes a fraction of it."""
PATIENCE_SECONDS = 150.0
"""Limit for one run of tests; recorded, they take a fifth."""


class Fate(Enum):
    KILLED = "killed"
    TIMEOUT = "timeout"
    """A test did not end. Counts as killed."""
    SURVIVED = "SURVIVED"
    UNTESTED = "UNTESTED"
    """No recorded test runs its line. Counts as survived."""
    EQUIVALENT = "equivalent"


@dataclass(frozen=True)
class Verdict:
    fate: Fate
    seconds: float = 0.0
    by: str = ""
    """The test that failed."""
    why: str = ""


class Bench:
    """One copy of the tree, one PostgreSQL, and the recording."""

    def __init__(self, root: Path, recording: Recording, *, trusted: set[str]) -> None:
        self._root, self._recording = root, recording
        self._selection = Selection(root, recording)
        self._trusted, self._broken = trusted, set[str]()
        self._stack = contextlib.ExitStack()
        self._mutants = 0
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        with contextlib.suppress(PostgresUnavailable):
            server = self._stack.enter_context(PostgresServer.start())
            # By its port, where tests put their proxies in between.
            self._environment[DSN_VARIABLE] = server.dsn(tcp=True)
        parent = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mutation-")))
        self._folder, self._report = parent / "tree", parent / "report.txt"
        shutil.copytree(self._root, self._folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def record(self, ends: float) -> bool:
        """Bring the recording up to date; False when the time did not suffice."""
        return self._recording.refresh(self._environment, ends)

    def tests_for(self, mutant: Mutant) -> list[list[str]]:
        """The tests that can show it, in the runs in which they are tried."""
        return self._selection.tests_for(mutant)

    def attempt(self, mutant: Mutant) -> Verdict:
        began = time.monotonic()
        verdict = Verdict(Fate.UNTESTED)
        for tests in self.tests_for(mutant):
            verdict = self._try(mutant, tests)
            if verdict.fate is not Fate.SURVIVED:
                break
        return Verdict(verdict.fate, time.monotonic() - began, verdict.by, verdict.why)

    def _try(self, mutant: Mutant, tests: list[str]) -> Verdict:
        """A test that also fails on the original kills nothing, and is left out from then on."""
        while tests := [test for test in tests if test not in self._broken]:
            with self._mutated(mutant):
                verdict = self._run(tests)
            if verdict.fate is Fate.SURVIVED or verdict.by in self._trusted:
                return verdict
            suspects = [verdict.by] if "::" in verdict.by else tests
            if self._run(suspects).fate is Fate.SURVIVED:
                self._trusted.update(suspects)
                return verdict
            print(f"left out, it fails on the original: {verdict.by}: {verdict.why}", flush=True)
            self._broken.update(suspects)
        return Verdict(Fate.SURVIVED)

    @contextlib.contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        file = self._folder / mutant.path
        source, stat = file.read_text(encoding="utf-8"), file.stat()
        try:
            file.write_text(mutant.apply(source), encoding="utf-8")
            # Bytecode is known by the second of its source: each mutant has one of its own.
            self._mutants += 1
            os.utime(file, (stat.st_atime, stat.st_mtime + self._mutants))
            yield
        finally:
            file.write_text(source, encoding="utf-8")
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _run(self, tests: list[str]) -> Verdict:
        self._report.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", *PYTEST, "-x", "-p", "tests.mutation.trial",
            f"--timeout={TEST_SECONDS}", *tests,
        ]  # fmt: skip
        settings = {
            **ALONE,
            "PYTHONPATH": f"{self._folder / 'src'}{os.pathsep}{self._folder}",
            REPORT: str(self._report),
        }
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=os.environ | self._environment | settings,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return Verdict(Fate.TIMEOUT, why="the run did not end")
        finally:
            # Processes that tests have started end with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code == 0:
            return Verdict(Fate.SURVIVED)
        told = self._report.read_text(encoding="utf-8") if self._report.exists() else ""
        by, why = (told.splitlines() or ["", f"pytest ended with {code}"])[:2]
        return Verdict(Fate.TIMEOUT if "Timeout (>" in why else Fate.KILLED, by=by, why=why)
