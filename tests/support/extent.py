"""How much a run of the tests tries: what fits into minutes, or with COMMANDBUS_TEST=everything all."""

from __future__ import annotations

import os

EVERYTHING = os.environ.get("COMMANDBUS_TEST") == "everything"


def sample(usual: int, everything: int) -> int:
    """How many of what a test does again and again."""
    return everything if EVERYTHING else usual
