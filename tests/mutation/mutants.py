"""Small changes of the source, found by its syntax tree: each is one that a careless edit might make.

A mutant replaces the text of one node, so that the rest of its file, comments too, stays as it is.
"""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = ("domain", "worker", "store", "operations", "engines")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr,
}  # fmt: skip
LOGGING = ("log", "_log", "logger")
"""Calls of these are not dropped: what is logged is no behaviour that tests promise."""


@dataclass(frozen=True)
class Mutant:
    path: str
    """Below the root of the project."""
    scope: str
    """The class and function, or the constant or field, it is in."""
    line: int
    kind: str
    old: str
    new: str
    start: int
    end: int
    """Where the old text is in the file, in characters."""
    number: int = 1
    """Counts equal changes in one scope."""
    name: str | None = None
    """Of a fixed mutant."""
    test: str | None = None
    """The test that has to kill a fixed mutant."""
    constant: str | None = None
    """The name of the module's constant that it changes, whose users are tested."""

    @property
    def key(self) -> str:
        """Stable while lines move: verdicts and the list of equivalent mutants name it."""
        number = f" #{self.number}" if self.number > 1 else ""
        return f"{self.path}: {self.scope}: {self.kind}: {self.change}{number}"

    @property
    def change(self) -> str:
        return f"{' '.join(self.old.split())} → {' '.join(self.new.split())}"

    @property
    def room(self) -> str:
        return "fixed" if self.name else self.path.split("/")[2]

    def apply(self, source: str) -> str:
        assert source[self.start : self.end] == self.old, f"{self.path} has changed"
        return source[: self.start] + self.new + source[self.end :]

    def diff(self, source: str) -> str:
        lines = difflib.unified_diff(
            source.splitlines(), self.apply(source).splitlines(), self.path, self.path, "", "", 1, ""
        )
        return "\n".join(lines)


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """Every mutant of a file."""
    source = (root / path).read_text(encoding="utf-8")
    found = _Finder(path, source)
    found.visit(ast.parse(source))
    return found.mutants


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: str) -> None:
        self.mutants: list[Mutant] = []
        self._path, self._source = path, source
        lines = source.encode().splitlines(keepends=True)
        self._lines = [line.decode() for line in lines]
        self._offsets = [0]
        for line in self._lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._functions = 0
        self._scope: list[str] = []
        self._seen: Counter[tuple[str, str, str, str]] = Counter()
        self._constant: str | None = None

    def _position(self, line: int, column: int) -> int:
        # Columns are bytes of UTF-8.
        text = self._lines[line - 1].encode()[:column].decode()
        return self._offsets[line - 1] + len(text)

    def _add(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._position(node.lineno, node.col_offset)
        end = self._position(node.end_lineno, node.end_col_offset)
        old = self._source[start:end]
        if old != new:
            constant = None if self._functions else self._constant
            scope = ".".join([*self._scope, *([constant] if constant else [])]) or "module"
            same = (scope, kind, " ".join(old.split()), new)
            self._seen[same] += 1
            self.mutants.append(
                Mutant(
                    self._path, scope, node.lineno, kind, old, new, start, end,
                    number=self._seen[same], constant=constant,
                )
            )  # fmt: skip

    # Statements.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        # The body alone: options such as `frozen` and `slots` guard against mistakes of programmers.
        self._scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if any("overload" in ast.unparse(one) for one in node.decorator_list) or _is_stub(node):
            return
        self._functions += 1
        self._scope.append(node.name)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()
        self._functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._add("negated condition", node.test, f"not ({ast.unparse(node.test)})")
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        call = node.value
        while isinstance(call, ast.Await | ast.YieldFrom):
            call = call.value
        if isinstance(call, ast.Call):
            called = ast.unparse(call.func)
            if called.split(".")[0] in LOGGING or "assert_never" in called:
                return
        if isinstance(node.value, ast.YieldFrom) and ast.unparse(node.value.value) == "()":
            return  # it only makes a generator of its function
        in_generator = isinstance(node.value, ast.Yield | ast.YieldFrom)
        self._add("dropped statement", node, "yield from ()" if in_generator else "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and ast.unparse(node.value) not in ("None", "NotImplemented"):
            self._add("return None", node, "return None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add("dropped statement", node, "pass")

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        swapped = ARITHMETIC.get(type(node.op))
        if swapped is not None:
            changed = ast.AugAssign(node.target, swapped(), node.value)
            self._add("arithmetic", node, ast.unparse(changed))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._functions and all(isinstance(one, ast.Attribute) for one in node.targets):
            self._add("dropped statement", node, "pass")
        if not self._functions and isinstance(node.targets[0], ast.Name):
            self._constant = node.targets[0].id
        self.visit(node.value)
        self._constant = None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            if not self._functions and isinstance(node.target, ast.Name):
                self._constant = node.target.id
            self.visit(node.value)
            self._constant = None

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion is a check already."""

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        swapped = COMPARISONS[type(node.ops[0])]
        changed = ast.Compare(node.left, [swapped(), *node.ops[1:]], node.comparators)
        self._add("comparison", node, ast.unparse(changed))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        swapped = ARITHMETIC.get(type(node.op))
        is_text = any(isinstance(part, ast.Constant) and isinstance(part.value, str)
                      for part in (node.left, node.right))  # fmt: skip
        if swapped is not None and not is_text:
            changed = ast.BinOp(node.left, swapped(), node.right)
            self._add("arithmetic", node, f"({ast.unparse(changed)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add("and, or", node, f"({ast.unparse(ast.BoolOp(swapped, node.values))})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        changed = ast.IfExp(node.test, node.orelse, node.body)
        self._add("swapped branches", node, f"({ast.unparse(changed)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("negated condition", node, ast.unparse(node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("constant", node, str(not value))
        elif isinstance(value, int):
            self._add("constant", node, str(value + 1))
        elif isinstance(value, float):
            self._add("constant", node, repr(value * 2 + 1))

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called.split(".")[0] in LOGGING or called.endswith("Error") or "TypeVar" in called:
            return
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts are for people."""


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A function of a protocol: it never runs."""
    last = node.body[-1]
    return isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)


def files_of(root: Path, room: str) -> Iterator[str]:
    """The source files of a room."""
    folder = root / "src" / "commandbus" / room
    for path in sorted(folder.rglob("*.py")):
        yield str(path.relative_to(root))
