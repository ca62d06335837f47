"""Every write of an operation is among those that the suites of atomicity let fail.

These suites inject an error after each step of the operations that they know. One that they do not know
would never fail half-way in a test, so the calls of the store in `operations/` are compared with those
that the suites make.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commandbus.store.port import ReadStore
from commandbus.testing import Configuration, FakeClock
from commandbus.testing.conformance import atomicity
from commandbus.testing.conformance.atomic_services import AtomicServicesSuite
from commandbus.testing.conformance.atomicity import AtomicitySuite, FailingStore
from tests.tidy.project import SOURCE, files_below, relative, report, syntax

Call = tuple[str, str, str]
"""Module, function and method of the store."""

READS = {name for name in vars(ReadStore) if not name.startswith("_")} | {
    *("now", "get_document", "get_documents", "list_documents", "due_documents", "next_document_due"),
    *("batch_counts", "get_process", "query_processes", "count_processes", "process_events"),
    *("lock_processes", "due_processes", "next_process_due", "recorded_steps", "held_by", "limits"),
    *("key_holder", "held_at", "ended_sessions", "foreign_leases"),
}

ELSEWHERE = {
    "promotion": "between two stores: tests/cli/test_promotion.py",
    "sign_ins": "each statement is complete by itself: tests/security/test_fleet_sign_in.py",
    "presence forget_worker": "each statement is complete by itself: `autocommit`",
    "queues adopt_queue": "one write, over PGMQ only: tests/pgmq/test_interoperability.py",
}
"""Writes that these suites cannot let fail, and why."""


def writes() -> Iterator[Call]:
    """The calls in the source that may change something."""
    for path in files_below(SOURCE / "operations"):
        yield from _writes_below(syntax(path), path, "")


def _writes_below(node: ast.AST, path: Path, function: str) -> Iterator[Call]:
    if isinstance(node, ast.FunctionDef):
        function = node.name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if ast.unparse(node.func.value).split(".")[-1] == "store" and method not in READS:
            yield path.stem, function, method
    for child in ast.iter_child_nodes(node):
        yield from _writes_below(child, path, function)


def tried(monkeypatch: pytest.MonkeyPatch) -> set[Call]:
    """The calls that the suite makes of stores that fail, in memory."""
    found: set[Call] = set()

    class Watched(FailingStore):
        def __getattr__(self, name: str) -> Any:
            code = sys._getframe(1).f_code
            found.add((Path(code.co_filename).stem, code.co_name, name))
            return super().__getattr__(name)

    monkeypatch.setattr(atomicity, "FailingStore", Watched)
    for suite in (AtomicitySuite, AtomicServicesSuite):
        for name, test in inspect.getmembers(suite, inspect.isfunction):
            if name.startswith("test_"):
                for case in _cases(test):
                    _try(partial(test, suite()), case, monkeypatch)
    return found


def _try(test: Any, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Configuration("memory", "memory://", clock=FakeClock())
    with closing(memory.open("threads")) as bus, monkeypatch.context() as own:
        given = {"bus": bus, "monkeypatch": own, **case}
        test(**{name: given[name] for name in inspect.signature(test).parameters})


def _cases(test: Any) -> list[dict[str, Any]]:
    """The arguments of a test that is parametrized, once for each case."""
    for mark in getattr(test, "pytestmark", []):
        names, values = mark.args
        names = [names] if isinstance(names, str) else names
        return [dict(zip(names, one if len(names) > 1 else [one], strict=True)) for one in values]
    return [{}]


def test_every_write_of_an_operation_fails_in_the_suite_of_atomicity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = tried(monkeypatch)
    missing = [
        f"{relative(SOURCE)}/operations/{m}.py {f}: store.{w}"
        for m, f, w in writes()
        if (m, f, w) not in known and not {m, f"{m} {f}"} & set(ELSEWHERE)
    ]
    assert not missing, report(
        "call the operation through fails_at_every_step in testing/conformance/atomicity.py", missing
    )
