"""Logic is written once for both runtimes: no `def` and `async def` of the same shape.

Functions are compared as syntax trees without names, constants, docstrings and `await`, so renaming
does not make a copy pass. Logic that waits is written as `async def` once, and threads run it by
`store.waiting.finish`; decisions are ops, and the effects of the worker core.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path

from tests.tidy.project import SOURCE, files_below, relative, syntax

NODES_MIN = 40
"""A thinner pair is the shell of a runtime: a call, and what it waits for."""
SHARE_MAX = 0.85

Shape = list[str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def shape(function: Function) -> Shape:
    """The syntax nodes of a body, in order, without what tells async from sync."""
    found: Shape = []

    def visit(node: ast.AST) -> None:
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.FunctionDef() | ast.AsyncFunctionDef():
                return  # a docstring; or a function that is compared by itself
            case ast.Await(value=value):
                visit(value)
                return
        found.append(type(node).__name__.removeprefix("Async"))
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "ctx"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child)

    for statement in function.body:
        visit(statement)
    return found


def functions(path: Path) -> Iterator[tuple[str, bool, Shape]]:
    for node in ast.walk(syntax(path)):
        if isinstance(node, Function) and len(found := shape(node)) >= NODES_MIN:
            name = f"{relative(path)}:{node.lineno} {node.name}"
            yield name, isinstance(node, ast.AsyncFunctionDef), found


def share(one: Shape, other: Shape) -> float:
    both = len(one) + len(other)
    if 2 * min(len(one), len(other)) < SHARE_MAX * both:
        return 0.0
    if 2 * (Counter(one) & Counter(other)).total() < SHARE_MAX * both:
        return 0.0
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def test_no_logic_is_written_twice_for_the_two_runtimes() -> None:
    every = [found for path in files_below(SOURCE) for found in functions(path)]
    blocking = [(name, found) for name, is_async, found in every if not is_async]
    awaiting = [(name, found) for name, is_async, found in every if is_async]
    twins = [
        f"{name} ~ {other} ({alike:.0%})"
        for (name, found), (other, others) in product(awaiting, blocking)
        if (alike := share(found, others)) >= SHARE_MAX
    ]
    assert not twins, "write each of these once, with store.waiting.finish:\n  " + "\n  ".join(twins)


def one_function(code: str) -> Shape:
    (function,) = ast.parse(code).body
    assert isinstance(function, Function)
    return shape(function)


COPIED = """
async def read(self, place):
    \"\"\"Words.\"\"\"
    async with self.lock:
        for line in await place.lines():
            await self.take(line, "x")
"""


def test_a_copy_is_recognised_in_spite_of_other_names() -> None:
    renamed = """
def fetch(own, source):
    with own.guard:
        for row in source.rows():
            own.keep(row, "y")
"""
    assert share(one_function(COPIED), one_function(renamed)) == 1.0


def test_different_logic_is_not_taken_for_a_copy() -> None:
    other = """
def read(self, place):
    if place in self.known:
        raise KeyError(place)
    self.known[place] = len(self.known) + 1
    return self.known[place]
"""
    assert share(one_function(COPIED), one_function(other)) < SHARE_MAX
