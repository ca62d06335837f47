"""SQL from files: each query has a name and a sentence of why, and reaches Python as an attribute."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from commandbus.store.columns import erased, listed
from commandbus.store.records import CLAIMED, OPTIONAL

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PART = re.compile(r"\{(\w+)\}")
PARTS = {
    "optional": listed(OPTIONAL),
    "c_optional": listed(OPTIONAL, "c."),
    "c_claimed": listed(CLAIMED, "c."),
    "erased": ", ".join(f"{name} = null" for name in erased(OPTIONAL)),
}
"""Parts that stand in the queries of all engines as `{optional}`: the optional columns of a command, by
themselves or of the table `c`, those that a claim returns, and those that erasure empties."""


def read_text(package: str, name: str) -> str:
    return Path(import_module(package).__path__[0], name).read_text(encoding="utf-8")


def load(package: str, name: str, **more: str) -> SimpleNamespace:
    """The queries of a file by name; `-- name: claim` begins one, comments after it say why. `{part}`
    stands for a part of `PARTS` or one that is given here; others are left alone."""
    known = PARTS | more
    text = _PART.sub(lambda found: known.get(found[1], found[0]), read_text(package, name))
    parts = _NAME.split(text)
    queries = dict(zip(parts[1::2], parts[2::2], strict=True))
    return SimpleNamespace(**{key: _strip(body) for key, body in queries.items()})


def _strip(body: str) -> str:
    lines = [line for line in body.splitlines() if line.strip() and not line.startswith("--")]
    return "\n".join(lines).rstrip(";")
