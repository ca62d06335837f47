"""Modules that note which of their blocks ran: every block of a function begins with a mark.

A mark sets one byte of its module's array, which costs far less than tracing lines: the recorded tests
take about as long as without. A block is a run of statements that are all executed when the first is.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

ARRAY = "__marks__"
MODULE = -1
"""The block of what runs on import."""
LISTS = ("body", "orelse", "finalbody", "handlers", "cases")


def blocks_of(source: str) -> list[list[int]]:
    """The lines of each block, by its number."""
    return _Marker(ast.parse(source)).blocks


class _Marker:
    """Puts a mark before each block of the functions of a module."""

    def __init__(self, module: ast.Module) -> None:
        self.blocks: list[list[int]] = []
        for statement in module.body:
            self._find_functions(statement)

    def _find_functions(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            has_text = ast.get_docstring(node, clean=False) is not None
            node.body[has_text:] = self._marked(node.body[has_text:])
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                    self._find_functions(child)

    def _marked(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        begins = True
        for statement in statements:
            if begins:
                found.append(self._mark(statement))
            found.append(statement)
            lines = set(range(statement.lineno, (statement.end_lineno or 0) + 1))
            inner = [part for part in _parts(statement) if part]
            for part in inner:
                lines -= set(range(part[0].lineno, (part[-1].end_lineno or 0) + 1))
            self.blocks[self._current].extend(sorted(lines))
            # What a generator yields to may never return, and a block inside may end the function.
            begins = bool(inner) or _is_left(statement)
            if inner:
                self._mark_inside(statement)
                self._current = MODULE
        return found

    def _mark(self, statement: ast.stmt) -> ast.stmt:
        self._current = len(self.blocks)
        self.blocks.append([])
        mark = ast.parse(f"{ARRAY}[{self._current}] = 1").body[0]
        for node in ast.walk(mark):
            ast.copy_location(node, statement)
        return mark

    def _mark_inside(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._find_functions(node)
            return
        for name in LISTS:
            part = getattr(node, name, [])
            if part and isinstance(part[0], ast.stmt):
                setattr(node, name, self._marked(part))
            else:
                for child in part:
                    self._mark_inside(child)


def _parts(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The lists of statements inside a statement."""
    holders = [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    return [
        getattr(holder, name)
        for holder in holders
        for name in ("body", "orelse", "finalbody")
        if isinstance(getattr(holder, name, None), list)
    ]


def _is_left(statement: ast.stmt) -> bool:
    return any(isinstance(n, ast.Yield | ast.YieldFrom | ast.Await) for n in ast.walk(statement))


@dataclass
class Marks(MetaPathFinder):
    """Imports the modules below a folder with marks."""

    source: Path
    prefixes: tuple[str, ...]
    arrays: dict[str, bytearray] = field(default_factory=dict)
    """By the path of the module below `source`."""

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def take(self) -> dict[str, int]:
        """The blocks that ran since the last call, as the bits of a number."""
        found: dict[str, int] = {}
        for path, array in self.arrays.items():
            if 1 in array:
                ran = bytes(array)
                array[:] = bytes(len(array))
                found[path] = sum(1 << number for number, mark in enumerate(ran) if mark)
        return found

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.startswith(self.prefixes) else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _MarkingLoader(spec.loader.name, spec.loader.path, self)
        return spec


class _MarkingLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, marks: Marks) -> None:
        super().__init__(name, path)
        self._marks = marks

    def exec_module(self, module: ModuleType) -> None:
        source = Path(self.path).read_text(encoding="utf-8")
        tree = ast.parse(source)
        array = bytearray(len(_Marker(tree).blocks))
        self._marks.arrays[str(Path(self.path).relative_to(self._marks.source))] = array
        setattr(module, ARRAY, array)
        exec(compile(tree, self.path, "exec", dont_inherit=True), module.__dict__)
