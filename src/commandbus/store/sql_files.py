"""SQL from files: each query has a name and a sentence of why, and reaches Python as an attribute."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def read_text(package: str, name: str) -> str:
    return Path(import_module(package).__path__[0], name).read_text(encoding="utf-8")


def load(package: str, name: str) -> SimpleNamespace:
    """The queries of a file by name; `-- name: claim` begins one, comments after it say why."""
    parts = _NAME.split(read_text(package, name))
    queries = dict(zip(parts[1::2], parts[2::2], strict=True))
    return SimpleNamespace(**{key: _strip(body) for key, body in queries.items()})


def _strip(body: str) -> str:
    lines = [line for line in body.splitlines() if line.strip() and not line.startswith("--")]
    return "\n".join(lines).rstrip(";")
