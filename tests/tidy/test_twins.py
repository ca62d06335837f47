"""The two runtimes are thin shells: what they have in common must not be written twice.

Each file of one runtime is compared with each of the other after everything that only says
"async" or "sync" is taken away, so that a copy is found even when it was translated.
"""

import ast
import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from tests.tidy.project import ROOT, SOURCE, files_below, relative

MAX_SHARE = 0.35
MIN_LINE_CHARACTERS = 12
MIN_LINES = 10  # below that a share says nothing

RUNTIMES = SOURCE / "runtimes"


class Plain(ast.NodeTransformer):
    """Drops docstrings and imports, and makes async syntax sync."""

    def visit(self, node: ast.AST) -> ast.AST | None:
        self.generic_visit(node)
        match node:
            case ast.Import() | ast.ImportFrom():
                return None
            case ast.Expr(value=ast.Constant(value=str())):
                return None
            case ast.Await(value=value):
                return value
            case ast.AsyncFunctionDef():
                return ast.FunctionDef(**vars(node))
            case ast.AsyncFor():
                return ast.For(**vars(node))
            case ast.AsyncWith():
                return ast.With(**vars(node))
        return node


def plain_lines(code: str) -> Counter[str]:
    """The lines of code that mean something, without what tells async from sync."""
    text = ast.unparse(Plain().visit(ast.parse(code)))
    text = re.sub(r"\b(_*)(?:Async|Sync|async_|sync_)(?=\w)", r"\1", text)
    text = re.sub(r"__a(enter|exit|iter|next)__", r"__\1__", text)
    lines = (re.sub(r"\s+", "", line) for line in text.splitlines())
    return Counter(line for line in lines if len(line) >= MIN_LINE_CHARACTERS)


def shared(one: Counter[str], other: Counter[str]) -> float:
    """The share of the smaller file that stands in the other one too."""
    smaller = min(one.total(), other.total())
    return (one & other).total() / smaller if smaller >= MIN_LINES else 0.0


def pairs() -> list[tuple[Path, Path]]:
    found = list(product(files_below(RUNTIMES / "asyncio"), files_below(RUNTIMES / "threads")))
    by_subject: dict[str, list[Path]] = {}
    for path in files_below(SOURCE):
        if re.search(r"(?<![a-z])a?sync(?![a-z])", path.stem):
            by_subject.setdefault(re.sub(r"_?a?sync_?", "", path.stem), []).append(path)
    return found + [
        (first, second)
        for paths in by_subject.values()
        for first, second in product(paths, paths)
        if first < second
    ]


@pytest.mark.parametrize(
    ("one", "other"), [pytest.param(a, b, id=f"{a.stem}-{b.stem}") for a, b in pairs()]
)
def test_the_runtimes_share_no_logic(one: Path, other: Path) -> None:
    lines, others = (plain_lines(path.read_text(encoding="utf-8")) for path in (one, other))
    share = shared(lines, others)
    common = "\n  ".join(sorted(lines & others))
    assert share < MAX_SHARE, (
        f"{relative(one)} and {relative(other)} have {share:.0%} of their lines in common; "
        f"move what they share to worker/ or operations/:\n  {common}"
    )


def test_a_translated_copy_is_recognised() -> None:
    written = (ROOT / "tests" / "tidy" / "project.py").read_text(encoding="utf-8")
    translated = re.sub(r"\bdef ", "async def ", written).replace("return ", "return await ")
    translated = re.sub(r'^ *""".*"""$', "", translated, flags=re.MULTILINE).replace(
        "await await", "await"
    )
    assert shared(plain_lines(written), plain_lines(translated)) > 0.9


def test_different_logic_is_not_taken_for_a_copy() -> None:
    one, other = (
        plain_lines((ROOT / "tests" / "tidy" / name).read_text(encoding="utf-8"))
        for name in ("test_features.py", "test_import.py")
    )
    assert shared(one, other) < MAX_SHARE
