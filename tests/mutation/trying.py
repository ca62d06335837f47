"""A copy of the tree in which mutants are tried, one after another."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import Queue
from typing import IO, Self

from commandbus.testing.postgres import DSN_VARIABLE, PostgresServer, PostgresUnavailable
from tests.mutation.forking import DID_NOT_END, IMPOSSIBLE, PIPES
from tests.mutation.mutants import Mutant
from tests.mutation.recording import ALONE, EMBEDDED, NEEDS_SERVER, PYTEST, SERVER, Recording
from tests.mutation.selection import Selection
from tests.mutation.trial import REPORT

NOT_COPIED = (".git", ".venv", "build", "dist", ".*_cache", ".hypothesis")
LANES = 3
"""Mutants that are tried at the same time: tests wait more than they compute."""
TEST_SECONDS = 15.0
"""Limit for one test of a mutant, or what it took on the original just before, times `SLOWER`."""
SLOWER = 10
ORIGINAL_SECONDS = 100.0
"""Limit for one test on the original."""
PATIENCE_SECONDS = 300.0
"""Limit for the tests of a mutant that needs an import."""


class Fate(Enum):
    KILLED = "killed"
    TIMEOUT = "timeout"
    """A test did not end. Counts as killed."""
    SURVIVED = "SURVIVED"
    UNTESTED = "UNTESTED"
    """No recorded test runs its line, and none names its module. Counts as survived."""
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

    def __init__(self, root: Path, recording: Recording) -> None:
        self._root, self._recording = root, recording
        self._selection = Selection(root, recording)
        self._broken: set[str] = set()
        self._stack = contextlib.ExitStack()
        self._mutants = 0
        self._environment: dict[str, str] = {}
        self._collected: Collected | None = None
        self._tests: dict[Mutant, list[str]] = {}
        self._importing: set[Mutant | None] = set()

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

    def record(self, mutants: Iterable[Mutant], ends: float) -> bool:
        """Bring the recording up to date; False when the time did not suffice. Tests on PostgreSQL are
        recorded for its own lines, and where no other test runs a line."""
        if not self._recording.refresh(EMBEDDED, self._environment, ends):
            return False
        sampled = [mutant for mutant in mutants if mutant.test is None]
        if all("/postgres/" not in m.path and self._selection.is_reached(m) for m in sampled):
            return True
        return self._recording.refresh(SERVER, self._environment, ends)

    def attempts(self, mutants: list[Mutant], ends: float) -> Iterator[tuple[Mutant, Verdict]]:
        """Try as many as the time allows, some at the same time. Those that need an import come last
        and one by one, because they change the tree."""
        later = [mutant for mutant in mutants if not self._forks(mutant)]
        forked = [mutant for mutant in mutants if self._forks(mutant)]
        self._collect(forked)
        with ThreadPoolExecutor(LANES) as threads:
            running = {threads.submit(self._attempt, mutant, ends): mutant for mutant in forked}
            try:
                for done in as_completed(running):
                    try:
                        verdict = done.result()
                    except NeedsImport:
                        later.append(running[done])
                        continue
                    if verdict is not None:
                        yield running[done], verdict
            finally:
                threads.shutdown(cancel_futures=True)
        for mutant in later:
            self._importing.add(mutant)
            verdict = self._attempt(mutant, ends)
            if verdict is not None:
                yield mutant, verdict

    def tests_for(self, mutant: Mutant) -> list[str]:
        """The tests that can show it, in the order in which they are tried."""
        if mutant not in self._tests:
            self._tests[mutant] = self._selection.tests_for(mutant)
        return self._tests[mutant]

    def _forks(self, mutant: Mutant) -> bool:
        is_reached = mutant.test is not None or self._selection.is_reached(mutant)
        return is_reached and not self._selection.runs_on_import(mutant)

    def _collect(self, mutants: list[Mutant]) -> None:
        """Collect the tests of these mutants, which are then tried without starting pytest again."""
        tests = {test for mutant in mutants for test in self.tests_for(mutant)}
        if tests:
            settings = self._environment | self._settings()
            self._collected = self._stack.enter_context(Collected(self._folder, tests, settings))

    def _attempt(self, mutant: Mutant, ends: float) -> Verdict | None:
        """None when the time has passed."""
        began = time.monotonic()
        if began > ends:
            return None
        tests = self.tests_for(mutant)
        verdict = self._try(mutant, tests) if tests else Verdict(Fate.UNTESTED)
        return Verdict(verdict.fate, time.monotonic() - began, verdict.by, verdict.why)

    def _try(self, mutant: Mutant, tests: list[str]) -> Verdict:
        """A test kills if it fails, then passes on the original, and fails again. One that fails on the
        original is left out from then on."""
        while tests := [test for test in tests if test not in self._broken]:
            verdict = self._run(tests, mutant, TEST_SECONDS)
            if verdict.fate is Fate.SURVIVED:
                return verdict
            # Without a test, as when an import fails, one that would be the first.
            suspect = verdict.by if "::" in verdict.by else _first(tests, verdict.by)
            began = time.monotonic()
            original = self._run([suspect], None, ORIGINAL_SECONDS)
            took = time.monotonic() - began
            if original.fate is not Fate.SURVIVED:
                print(f"fails on the original: {suspect}: {original.why}", flush=True)
                self._broken.add(suspect)
            else:
                again = self._run([suspect], mutant, max(TEST_SECONDS, took * SLOWER))
                if again.fate is not Fate.SURVIVED:
                    return verdict
            print(f"left out, its result varies: {suspect}: {verdict.why}", flush=True)
            name = suspect.partition("[")[0]
            left_out = (name, name.partition("::")[0])  # with its other cases, or its file
            tests = [test for test in tests if test.partition("[")[0] not in left_out]
        return Verdict(Fate.SURVIVED)

    def _run(self, tests: list[str], mutant: Mutant | None, seconds: float) -> Verdict:
        collected = None if mutant in self._importing else self._collected
        # Others are gone since they were recorded, or cannot be collected.
        known = [test for test in tests if collected is not None and collected.has(test)]
        if collected is not None and known:
            return collected.run(known, mutant, seconds)
        if mutant is not None and mutant not in self._importing:
            raise NeedsImport  # in its turn: others are tried in the same tree at this moment
        with contextlib.nullcontext() if mutant is None else self._mutated(mutant):
            return self._start(tests, seconds)

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

    def _settings(self) -> dict[str, str]:
        return {**ALONE, "PYTHONPATH": f"{self._folder / 'src'}{os.pathsep}{self._folder}"}

    def _start(self, tests: list[str], seconds: float) -> Verdict:
        """A run of pytest of its own: it imports everything again."""
        self._report.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", *PYTEST, "-x", "-p", "tests.mutation.trial",
            f"--timeout={seconds}", *tests,
        ]  # fmt: skip
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=os.environ | self._environment | self._settings() | {REPORT: str(self._report)},
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
        return _failure(by, why)


class NeedsImport(Exception):
    """A mutant can only be tried by importing everything again."""


class Collected:
    """A run of pytest that has collected tests, and forks for each mutant."""

    def __init__(self, folder: Path, tests: set[str], settings: dict[str, str]) -> None:
        self._folder, self._settings = folder, settings
        self._files = sorted({test.partition("::")[0] for test in tests})
        self._tests: set[str] = set()
        self._lanes: Queue[tuple[IO[str], IO[str]]] = Queue()

    def __enter__(self) -> Self:
        pipes = [(os.pipe(), os.pipe()) for _ in range(LANES)]
        theirs = [(requests[0], answers[1]) for requests, answers in pipes]
        command = [
            sys.executable, "-m", *PYTEST, "-p", "tests.mutation.forking", "-s", *self._files,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=os.environ | self._settings | {PIPES: json.dumps(theirs)},
            pass_fds=[fd for pair in theirs for fd in pair],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for pair in theirs:
            os.close(pair[0])
            os.close(pair[1])
        for requests, answers in pipes:
            lane = (os.fdopen(requests[1], "w", encoding="utf-8"), os.fdopen(answers[0]))
            self._tests = set(self._answer(lane[1]))
            self._lanes.put(lane)
        return self

    def __exit__(self, *_: object) -> None:
        for _number in range(LANES):
            for pipe in self._lanes.get():
                pipe.close()
        self._process.wait()

    def has(self, test: str) -> bool:
        return bool(self._cases(test))

    def _cases(self, test: str) -> list[str]:
        """The test, or its cases, without a server if there are such."""
        if test in self._tests:
            return [test]
        cases = sorted(one for one in self._tests if one.startswith(f"{test}["))
        return [one for one in cases if not NEEDS_SERVER.search(one)] or cases

    def run(self, tests: list[str], mutant: Mutant | None, seconds: float) -> Verdict:
        """Raises NeedsImport for a mutant that cannot be put into a running program."""
        cases = [case for test in tests for case in self._cases(test)]
        request: dict[str, object] = {"tests": cases, "seconds": seconds}
        if mutant is not None:
            file = self._folder / mutant.path
            source = mutant.apply(file.read_text(encoding="utf-8"))
            request |= {"path": str(file), "start": mutant.start, "source": source}
        lane = self._lanes.get()
        try:
            print(json.dumps(request), file=lane[0], flush=True)
            found = self._answer(lane[1])
        finally:
            self._lanes.put(lane)
        if not found:
            return Verdict(Fate.SURVIVED)
        if found[0] == IMPOSSIBLE:
            raise NeedsImport
        assert found[0], f"{mutant and mutant.key}: {found[1]}"
        return _failure(found[0], found[1])

    def _answer(self, answers: IO[str]) -> list[str]:
        line = answers.readline()
        assert line, f"pytest ended; run it with {self._files}"
        answer: list[str] = json.loads(line)
        return answer


def _failure(by: str, why: str) -> Verdict:
    has_ended = "Timeout (>" not in why and not why.startswith(DID_NOT_END)
    return Verdict(Fate.KILLED if has_ended else Fate.TIMEOUT, by=by, why=why)


def _first(tests: list[str], by: str) -> str:
    """The first in the file that is named, or of all."""
    return next((test for test in tests if by and test.startswith(by)), tests[0])
