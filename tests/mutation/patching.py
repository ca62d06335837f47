"""Mutants of function bodies, put into a program that has imported the source already.

The code of the function is replaced, wherever it is referred to. What runs on import, such as
constants, fields and defaults of parameters, cannot be replaced this way.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """An outermost function, and which of those with its name."""

    name: str
    number: int
    line: int
    """Of its first decorator, if it has one."""


def place_of(source: str, start: int) -> Place | None:
    """The function whose body has this position; None where the position runs on import."""
    line = source.count("\n", 0, start) + 1
    seen: dict[str, int] = {}
    for name, node in _outermost(ast.parse(source), ""):
        seen[name] = seen.get(name, -1) + 1
        if node.body[0].lineno <= line <= (node.end_lineno or 0):
            first = min(one.lineno for one in (node, *node.decorator_list))
            return Place(name, seen[name], first)
    return None


def body_of_signature(source: str, start: int) -> int | None:
    """The first line of the body of the function whose signature has this position."""
    line = source.count("\n", 0, start) + 1
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Definition):
            body = [one for one in node.body if not _is_text(one)] or node.body
            if node.lineno <= line < node.body[0].lineno:
                return body[0].lineno
    return None


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _outermost(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _outermost(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from _outermost(child, prefix)


def replace(file: str, place: Place, mutated: str) -> bool:
    """Give the function its mutated code; False where that is not possible."""
    module = compile(mutated, file, "exec", dont_inherit=True)
    codes = [code for code in _codes(module) if code.co_qualname == place.name]
    gc.unfreeze()  # tests/conftest.py has hidden from the collector what was there before the tests
    functions = [
        one
        for one in gc.get_objects()
        if type(one) is FunctionType  # isinstance would load lazy objects of other libraries
        and one.__code__.co_filename == file
        and one.__code__.co_qualname == place.name
        and one.__code__.co_firstlineno == place.line
    ]
    if not functions or place.number >= len(codes):
        return False
    code = codes[place.number]
    if any(one.__code__.co_freevars != code.co_freevars for one in functions):
        return False
    for function in functions:
        function.__code__ = code
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of outermost functions: of the module, and of its classes."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            if one.co_flags & 0x2:  # CO_NEWLOCALS: a function, not the body of a class
                yield one
            else:
                yield from _codes(one)
