"""docs/features.md has a row for every feature, and every proof it names exists."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.tidy.project import ROOT, SOURCE, files_below, report, syntax

PAGE = ROOT / "docs" / "features.md"
STATES = {"done", "partly", "planned"}

# The ids of each group run from 1 to this number, without gaps.
GROUPS = {
    "SEND": 13,
    "CLAIM": 16,
    "WAKE": 15,
    "WORK": 17,
    "HAND": 4,
    "TYPE": 6,
    "SYNC": 9,
    "HLTH": 4,
    "RETRY": 7,
    "TSQ": 6,
    "REPLY": 2,
    "BATCH": 6,
    "PROC": 11,
    "CRON": 2,
    "OBS": 11,
    "UI": 8,
    "ENG": 11,
    "API": 7,
    "TX": 1,
    "CRASH": 8,
    "QUIET": 3,
    "DESK": 9,
    "DOC": 9,
    "S0": 13,
    "S1": 18,
    "S2": 22,
    "S3": 28,
    "S4": 38,
}
IDS = [f"{group}-{number}" for group, last in GROUPS.items() for number in range(1, last + 1)]


class Row(NamedTuple):
    id: str
    what: str
    state: str
    proofs: tuple[str, ...]


@cache
def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and re.match(r"[A-Z]\w*-\d+$", cells[0]):
            assert len(cells) == 4, f"A row has four cells, id, what, state and proof: {line}"
            proofs = re.findall(r"[\w./-]+\.py[^\s,`]*", cells[3])
            assert proofs or cells[3] == "–", f"A proof is path::name, or – for none: {line}"
            found.append(Row(cells[0], cells[1], cells[2], tuple(proofs)))
    return found


def test_every_feature_has_one_row() -> None:
    assert [row.id for row in rows()] == IDS, "Give each id of GROUPS one row, in that order."


def test_every_state_is_known() -> None:
    wrong = [f"{row.id}: {row.state}" for row in rows() if row.state not in STATES]
    assert not wrong, report(f"A state is one of {', '.join(sorted(STATES))}.", wrong)


def test_what_is_done_is_proven() -> None:
    unproven = [row.id for row in rows() if row.state == "done" and not row.proofs]
    assert not unproven, report("Name the test that proves the row, or call it partly.", unproven)


def test_every_proof_exists() -> None:
    missing = [f"{row.id}: {proof}" for row in rows() for proof in row.proofs if not exists(proof)]
    assert not missing, report("Name an existing test as path::name or path::Class::name.", missing)


@cache
def suites() -> dict[str, ast.ClassDef]:
    """Every class of the tests and of the conformance library, by its name."""
    return {
        node.name: node
        for path in files_below(ROOT / "tests", SOURCE / "testing")
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ClassDef)
    }


def exists(proof: str) -> bool:
    path, *names = re.sub(r"\[.*\]$", "", proof).split("::")
    # Only what pytest collects proves anything: a suite is proven where a test inherits it.
    if not names or not path.startswith("tests/") or not (ROOT / path).is_file():
        return False
    *classes, test = names
    if not test.startswith("test_"):
        return False
    scopes: list[ast.Module | ast.ClassDef] = [syntax(Path(ROOT / path))]
    for name in classes:
        scopes = [node for scope in scopes for node in scope.body if is_class(node, name)]
    return any(defines(scope, test) for scope in scopes)


def is_class(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def defines(scope: ast.Module | ast.ClassDef, test: str) -> bool:
    """Whether the module or class has the test; a class may inherit it from a suite."""
    if any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test
        for node in scope.body
    ):
        return True
    if isinstance(scope, ast.Module):
        return False
    bases = [
        base.attr if isinstance(base, ast.Attribute) else base.id
        for base in scope.bases
        if isinstance(base, ast.Attribute | ast.Name)
    ]
    return any(
        defines(suite, test) for base in bases if (suite := suites().get(base)) and suite is not scope
    )


def test_a_proof_may_be_inherited_and_may_not_be_invented() -> None:
    assert exists("tests/tidy/test_features.py::test_every_proof_exists")
    assert exists("tests/tidy/test_features.py::test_every_proof_exists[memory]")
    assert exists("tests/conformance/test_insight.py::TestWhy::test_others_are_ahead")
    assert not exists("tests/conformance/test_insight.py::TestWhy::test_that_does_not_exist")
    assert not exists("tests/conformance/test_insight.py::TestWorkers::test_others_are_ahead")
    assert not exists("src/commandbus/testing/conformance/insight.py::WhySuite::test_others_are_ahead")
    assert not exists("tests/tidy/test_features.py::test_that_does_not_exist")
    assert not exists("tests/tidy/nowhere.py::test_every_proof_exists")
    assert not exists("tests/tidy/test_features.py")
