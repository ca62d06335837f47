"""A pytest plugin for one mutant: reports the first test that fails, and always ends the process.

`-p tests.mutation.trial` with the name of the report in MUTATION_REPORT.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPORT = "MUTATION_REPORT"
_status = 0


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(exitstatus: int) -> None:
    global _status
    _status = exitstatus


def pytest_unconfigure() -> None:
    """A thread that a failed test has left behind must not keep the process alive."""
    os._exit(_status)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed and not _report().exists():
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(getattr(crash, "message", report.longrepr)).strip().splitlines() or [""]
        _report().write_text(f"{report.nodeid}\n{why[0][:200]}\n", encoding="utf-8")


def _report() -> Path:
    return Path(os.environ[REPORT])
