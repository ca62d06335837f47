"""The lists of mutants stay true while the source changes, and mutants are found as meant."""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
from pathlib import Path

import pytest

from tests.mutation.forking import answer_of
from tests.mutation.known import equivalents, known_mutants
from tests.mutation.marking import Marks, blocks_of
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.patching import place_of, replace
from tests.mutation.recording import Recording
from tests.mutation.trying import Bench, Fate, Verdict

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


BLOCKS = '''
class Counter:
    step = 5

    def count(self, values, limit=10):
        """A docstring."""
        total = 0
        for value in values:
            if value > limit:
                return "too much"
            total += self.step
        else:
            total *= 2

        def inner():
            return total
        return inner()


def numbers(count):
    match count:
        case 0:
            yield "none"
        case other if other < 0:
            raise ValueError(other)
        case _:
            pass
    yield count
    count += 1
'''


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Marks:
    (tmp_path / "marked_counter.py").write_text(BLOCKS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.import_module("sys").modules, "marked_counter", raising=False)
    marks = Marks(tmp_path, ("marked_counter",))
    monkeypatch.setattr("sys.meta_path", [marks, *importlib.import_module("sys").meta_path])
    return marks


def test_marks_tell_which_lines_of_functions_ran(marks: Marks) -> None:
    module = importlib.import_module("marked_counter")

    def ran() -> list[str]:
        bits = marks.take().get("marked_counter.py", 0)
        lines = sorted(n for i, block in enumerate(blocks_of(BLOCKS)) if bits >> i & 1 for n in block)
        text = BLOCKS.splitlines()
        return [text[line - 1].strip() for line in lines]

    assert ran() == []
    assert module.Counter.count.__doc__ == "A docstring."
    assert module.Counter().count([11]) == "too much"
    always = ["total = 0", "for value in values:", "if value > limit:"]
    assert ran() == [*always, 'return "too much"', "else:"]
    assert module.Counter().count([1]) == 10
    assert 'return "too much"' not in (found := ran())
    assert {"total += self.step", "total *= 2", "return total", "return inner()"} <= set(found)
    following = module.numbers(0)
    assert next(following) == "none"
    assert {'yield "none"', "match count:"} <= set(found := ran())
    assert not {"yield count", "count += 1", "raise ValueError(other)", "pass"} & set(found)
    assert list(following) == [0]
    assert ran() == ["yield count", "count += 1"]


def test_a_mutant_of_a_body_is_put_into_an_imported_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "patched_counter.py"
    file.write_text(BLOCKS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("patched_counter")
    counter, count = module.Counter(), module.Counter.count
    gc.freeze()  # as before the tests of a run
    mutants = {m.change: m for m in mutants_of(tmp_path, "patched_counter.py")}

    def put(change: str) -> bool:
        mutant = mutants[change]
        place = place_of(BLOCKS, mutant.start)
        return place is not None and replace(str(file), place, mutant.apply(BLOCKS))

    assert not put("5 → 6"), "a field of a class is set on import"
    assert not put("10 → 11"), "so is the default of a parameter"
    assert counter.count([10]) == 10
    assert put("value > limit → value >= limit")
    assert counter.count([10]) == "too much"
    assert put("return total → return None")
    assert count(counter, [1]) is None
    assert put("yield count → yield from ()")
    assert list(module.numbers(3)) == []


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        (["tests/a", []], []),
        (["tests/a", "tests/b", ["tests/b", "it is 3"]], ["tests/b", "it is 3"]),
        (["tests/a", "tests/b"], ["tests/b", "the process ended"]),
        ([], ["", "the process ended"]),
    ],
)
def test_an_answer_names_the_test_that_failed(told: list[object], answer: list[str]) -> None:
    reads, writes = os.pipe()
    os.write(writes, "".join(json.dumps(line) + "\n" for line in told).encode())
    os.close(writes)
    assert answer_of(reads, 60) == answer
    os.close(reads)


def test_a_test_that_does_not_end_is_named() -> None:
    reads, writes = os.pipe()
    os.write(writes, b'"tests/a"\n')
    assert answer_of(reads, 0)[0] == "tests/a"
    os.close(reads)
    os.close(writes)


@pytest.mark.parametrize("tests", ["tests/a.py", "tests/a.py::test", "tests/a.py::test[2]"])
@pytest.mark.parametrize(
    ("runs", "fate"),
    [
        (["fails", "passes", "fails"], Fate.KILLED),
        (["passes"], Fate.SURVIVED),
        (["fails", "fails on the original"], Fate.SURVIVED),
        (["fails", "passes", "passes"], Fate.SURVIVED),
    ],
)
def test_a_test_that_fails_by_chance_or_on_the_original_kills_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: list[str], fate: Fate, tests: str
) -> None:
    left = iter(runs)

    def run(bench: Bench, chosen: list[str], mutant: Mutant | None, seconds: float) -> Verdict:
        fate = Fate.KILLED if next(left).startswith("fails") else Fate.SURVIVED
        return Verdict(fate, by="tests/a.py::test[1]")

    monkeypatch.setattr(Bench, "_run", run)
    (tmp_path / "source.py").write_text(SOURCE, encoding="utf-8")
    mutant = mutants_of(tmp_path, "source.py")[0]
    assert Bench(tmp_path, Recording(tmp_path))._try(mutant, [tests]).fate is fate
    assert list(left) == []
