"""The lists of mutants stay true while the source changes, and mutants are found as meant."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutation.known import equivalents, known_mutants
from tests.mutation.mutants import mutants_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''
LIMIT = 10


class Row:
    first: int = 0
    second: int = 0

    def stub(self, count: int = 1) -> int:
        """Never runs."""
        ...


def admit(count: int) -> bool:
    """A docstring."""
    if count < LIMIT and count != 0:
        note("é", count)
        return True
    raise ValueError(count)
'''


def test_every_fixed_mutant_is_in_the_source() -> None:
    _, gone = known_mutants(ROOT)
    assert gone == [], "mend tests/mutation/known.py: the text that these change has moved or changed"


def test_every_equivalent_mutant_is_in_the_source() -> None:
    keys = equivalents()
    files = {key.partition(":")[0] for key in keys}
    found = {mutant.key for file in files for mutant in mutants_of(ROOT, file)}
    assert keys <= found, "mend or remove these lines of tests/mutation/equivalent.txt"


def test_each_mutant_has_its_own_key_and_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(SOURCE, encoding="utf-8")
    mutants = mutants_of(tmp_path, "source.py")
    assert {mutant.key.removeprefix("source.py: ") for mutant in mutants} == {
        "LIMIT: constant: 10 → 11",
        "Row.first: constant: 0 → 1",
        "Row.second: constant: 0 → 1",
        "admit: negated condition: count < LIMIT and count != 0 → not (count < LIMIT and count != 0)",
        "admit: and, or: count < LIMIT and count != 0 → (count < LIMIT or count != 0)",
        "admit: comparison: count < LIMIT → count <= LIMIT",
        "admit: comparison: count != 0 → count == 0",
        "admit: constant: 0 → 1",
        'admit: dropped statement: note("é", count) → pass',
        "admit: return None: return True → return None",
        "admit: constant: True → False",
        "admit: dropped statement: raise ValueError(count) → pass",
    }
    for mutant in mutants:
        changed = mutant.apply(SOURCE)
        assert changed != SOURCE
        ast.parse(changed)
