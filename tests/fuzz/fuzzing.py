"""Properties with a seed, in two sizes: a few examples with every test run, many through FUZZ=2000.

FUZZ_SEED chooses other examples, and FUZZ_COUNT names a file for the number of those that were tried.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("FUZZ", "25"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
_counter = itertools.count(1)
tried = 0

HOSTILE = (
    "",
    " ",
    "\0",
    "\ud800",
    "'; drop table commandbus_command; --",
    '"',
    "\\",
    "%s %(x)s {0} $1 :a ?",
    "<script>alert(1)</script>",
    "\x1b[2J",
    "../../etc/passwd",
    "\u202egnp.exe",
    "𝄞" * 3,
    "null",
    "-1",
    "x" * 300,
    "\r\nSet-Cookie: a=b",
)
texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=80))
names = st.one_of(st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:-]{0,62}", fullmatch=True), texts)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    texts,
)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


def fuzzed(**strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A property over these strategies; fixtures are made once for all its examples."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def counted(*args: Any, **values: Any) -> None:
            global tried
            tried = next(_counter)
            function(*args, **values)

        bounded = settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        return seed(SEED)(bounded(given(**strategies)(counted)))

    return decorate


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, all the way down; 0.0 is not -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def write_count() -> None:
    if file := os.environ.get("FUZZ_COUNT"):
        Path(file).write_text(str(tried))
