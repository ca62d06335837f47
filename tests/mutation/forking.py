"""A pytest plugin that collects tests once, and tries each mutant in a process forked from there.

`-p tests.mutation.forking -s` with pairs of pipes in MUTATION_PIPES, one for each process that works at
the same time: requests are read from one, JSON on a line each, and answers are written to the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from commandbus.testing.postgres import DSN_VARIABLE
from tests.mutation.patching import place_of, replace
from tests.mutation.recording import NEEDS_SERVER

PIPES = "MUTATION_PIPES"
IMPOSSIBLE = "impossible"
"""The answer for a mutant that cannot be put into a running program."""
DID_NOT_END = "did not end"
_failed: list[list[str]] = []
_began: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    items = {item.nodeid: item for item in session.items}
    pipes: list[list[int]] = json.loads(os.environ[PIPES])
    lanes = []
    for reads, writes in pipes:
        lanes.append(os.fork())
        if lanes[-1] == 0:
            for other in {fd for pair in pipes for fd in pair} - {reads, writes}:
                os.close(other)
            _serve(items, reads, writes)
    for pair in pipes:
        os.close(pair[0])
        os.close(pair[1])
    for lane in lanes:
        os.waitpid(lane, 0)
    return True


def _serve(items: dict[str, pytest.Item], reads: int, writes: int) -> NoReturn:
    """Answer requests, one after another, until there are no more."""
    try:
        _share_databases(items)
        with os.fdopen(reads, encoding="utf-8") as requests, os.fdopen(writes, "w") as answers:
            print(json.dumps(sorted(items)), file=answers, flush=True)
            for line in requests:
                print(json.dumps(_forked(items, json.loads(line))), file=answers, flush=True)
    finally:
        os._exit(0)


def _share_databases(items: dict[str, pytest.Item]) -> None:
    """Make the databases that tests empty before use, so that not each forked process makes its own."""
    if DSN_VARIABLE in os.environ and any(NEEDS_SERVER.search(test) for test in items):
        from tests.pgmq.database import shared_url as pgmq_url
        from tests.postgres.database import shared_url

        shared_url()
        pgmq_url()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(getattr(crash, "message", report.longrepr)).strip().splitlines() or [""]
        _failed.append([report.nodeid, why[0][:200]])


def _forked(items: dict[str, pytest.Item], request: dict[str, object]) -> list[str]:
    """The first test that fails, and why; empty if none does. Names none if none began."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reads)
            _work(items, request, writes, folder)
        os.close(writes)
        try:
            return answer_of(reads, float(str(request["seconds"])))
        finally:
            # Processes that tests have started end with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reads)


def answer_of(reads: int, seconds: float) -> list[str]:
    """The last line. Those before name the tests as they begin; each has so many seconds."""
    test = ""
    with os.fdopen(os.dup(reads), "rb", buffering=0) as lines:
        while select.select([lines], [], [], seconds if test else None)[0]:
            line = lines.readline()
            if not line:
                return [test, "the process ended"]
            told: str | list[str] = json.loads(line)
            if isinstance(told, list):
                return told
            test = told
    return [test, f"{DID_NOT_END} in {seconds:.0f} s"]


def _work(
    items: dict[str, pytest.Item], request: dict[str, object], writes: int, folder: str
) -> NoReturn:
    os.setsid()
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    answer: list[str] = []
    try:
        if "path" in request and not _replaced(Path(str(request["path"])), request):
            answer = [IMPOSSIBLE, ""]
        else:
            tests = request["tests"]
            assert isinstance(tests, list)
            answer = _run([items[test] for test in tests], writes)
    except BaseException as error:  # whatever ends a test run is its result
        answer = [_began[-1] if _began else "", f"{type(error).__name__}: {error}"]
    finally:
        _tell(writes, answer)
        os._exit(0)


def _tell(writes: int, what: str | list[str]) -> None:
    os.write(writes, json.dumps(what).encode() + b"\n")


def _replaced(file: Path, request: dict[str, object]) -> bool:
    source = file.read_text(encoding="utf-8")
    place = place_of(source, int(str(request["start"])))
    return place is not None and replace(str(file), place, str(request["source"]))


def _run(chosen: list[pytest.Item], writes: int) -> list[str]:
    for number, item in enumerate(chosen):
        _began.append(item.nodeid)
        _tell(writes, item.nodeid)
        following = chosen[number + 1] if number + 1 < len(chosen) else None
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        if _failed:
            return _failed[0]
    return []


def pytest_unconfigure() -> None:
    sys.stdout.flush()
    os._exit(0)
