"""Which programs a schema is for: its own version's, and older ones that it declares to be compatible.

A migration that only adds (tables, columns that may be empty, indexes, functions of new names) leaves
the statements of older programs working, and says so in its first lines: `-- compatible from: 5` means
that programs which know migration 5 work with it, too. It is kept with the migration, so that an older
program, which does not have the file, can read it in the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_DECLARED = re.compile(r"^-- compatible from: (\d+)$", re.MULTILINE)


def compatible_from(script: str, version: int) -> int:
    """The lowest version of a program that works with this migration; its own by default."""
    declared = _DECLARED.search(script)
    return min(version, int(declared[1])) if declared else version


def accepts(known: int, applied: Mapping[int, int]) -> bool:
    """Whether a program that knows so many migrations works with a store that has these, each with the
    lowest version it is compatible with."""
    return all(version <= known or lowest <= known for version, lowest in applied.items())
