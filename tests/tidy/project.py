"""Where the project's files are, for the tests that read them."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "commandbus"
IGNORED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is, or may become, part of a commit; all files where there is no git."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = (p for p in ROOT.rglob("*") if not IGNORED_FOLDERS & set(p.parts))
    else:
        found = (ROOT / name for name in names.split("\0") if name)
    return tuple(sorted(path for path in set(found) if path.is_file()))


def files_below(*folders: Path, suffix: str = ".py") -> list[Path]:
    return [
        path
        for path in project_files()
        if path.suffix == suffix and any(path.is_relative_to(folder) for folder in folders)
    ]


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def report(cure: str, findings: list[str]) -> str:
    """The message of a failed rule: what to do first, then where."""
    return "\n  ".join([cure, *findings])
