"""A pytest plugin that records which test runs which lines, and how long each test takes.

`coverage run -m pytest -p tests.mutation.recorder`: every test is a context of its own, threads and
event loops that it starts included.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import coverage
import pytest

DURATIONS = "MUTATION_DURATIONS"
"""Names the file for the durations."""
_seconds: dict[str, float] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A behaviour that is tested in both runtimes is recorded in one, another on each engine:
    the lines of an engine, a store or an operation are the same in both."""
    items[:] = [item for item in items if _is_recorded(item)]


def _is_recorded(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    engine = "" if case is None else str(case.params.get("configuration"))
    if case is None or "runtime" not in case.params or engine == "pgmq":
        return True
    both = f"{item.nodeid.partition('[')[0]} {engine}"
    return bool(case.params["runtime"] == ("asyncio", "threads")[zlib.crc32(both.encode()) % 2])


def pytest_runtest_logstart(nodeid: str) -> None:
    _switch(nodeid)


def pytest_runtest_logfinish() -> None:
    _switch("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        # A test that fails here would kill every mutant.
        _seconds[report.nodeid] = float("inf")
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish() -> None:
    passed = {nodeid: seconds for nodeid, seconds in _seconds.items() if seconds != float("inf")}
    Path(os.environ[DURATIONS]).write_text(json.dumps(passed), encoding="utf-8")


def pytest_unconfigure() -> None:
    """Ends here: a thread that a failed test has left behind must not keep the recording waiting."""
    if (running := coverage.Coverage.current()) is not None:
        running.stop()
        running.save()
        os._exit(0)


def _switch(context: str) -> None:
    running = coverage.Coverage.current()
    assert running is not None, "run pytest under coverage"
    running.switch_context(context)
