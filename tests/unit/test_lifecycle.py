"""The lifecycle is one table: every pair of status and transition is either in it or refused."""

from __future__ import annotations

import itertools
import runpy

import pytest

from commandbus.domain import lifecycle
from commandbus.domain.lifecycle import FINAL, PARKED, TRANSITIONS, CommandStatus, Transition
from commandbus.errors import InvalidOperationError

PAIRS = list(itertools.product(CommandStatus, Transition))

EXPECTED = """
PENDING: claim IN_PROGRESS, cancel CANCELED, expire CANCELED, park IN_TROUBLESHOOTING_QUEUE
IN_PROGRESS: complete COMPLETED, reject FAILED, retry PENDING, release PENDING, lose PENDING,
  park IN_TROUBLESHOOTING_QUEUE, cancel CANCELED
IN_TROUBLESHOOTING_QUEUE: cancel CANCELED, operator_retry PENDING, operator_cancel CANCELED,
  operator_complete COMPLETED
"""


def expected() -> dict[tuple[str, str], str]:
    table = {}
    for line in EXPECTED.replace("\n ", "").strip().splitlines():
        before, _, rest = line.partition(": ")
        for entry in rest.split(","):
            transition, then = entry.split()
            table[before, transition] = then
    return table


def test_the_table_is_the_agreed_one() -> None:
    found = {(str(before), str(what)): str(then) for (before, what), then in TRANSITIONS.items()}
    assert found == expected()


@pytest.mark.parametrize(("status", "transition"), PAIRS)
def test_a_transition_is_in_the_table_or_refused(status: CommandStatus, transition: Transition) -> None:
    then = TRANSITIONS.get((status, transition))
    if then is not None:
        assert lifecycle.after(status, transition) is then
        return
    with pytest.raises(InvalidOperationError, match=f"a command that is {status}"):
        lifecycle.after(status, transition)


def test_nothing_follows_a_final_status_and_everything_leads_to_one() -> None:
    assert not {before for before, _ in TRANSITIONS} & FINAL
    reached = {CommandStatus.PENDING}
    while grown := {then for (b, _), then in TRANSITIONS.items() if b in reached} - reached:
        reached |= grown
    assert reached == set(CommandStatus)


def test_a_refusal_names_what_is_possible() -> None:
    with pytest.raises(InvalidOperationError, match="possible now: cancel, operator_cancel, op"):
        lifecycle.after(PARKED, Transition.CLAIM)
    with pytest.raises(InvalidOperationError, match=r"^Cannot retry .* its outcome is final"):
        lifecycle.after(CommandStatus.COMPLETED, Transition.OPERATOR_RETRY)


def test_the_diagram_shows_every_transition_once() -> None:
    lines = lifecycle.diagram().splitlines()
    for (before, what), then in TRANSITIONS.items():
        assert lines.count(f"    {before} --> {then}: {what}") == 1
    assert len(lines) == len(TRANSITIONS) + len(FINAL) + 2


def test_the_module_prints_the_diagram_only_when_it_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(lifecycle.__file__, run_name="imported")
    assert capsys.readouterr().out == ""
    runpy.run_path(lifecycle.__file__, run_name="__main__")
    assert capsys.readouterr().out.strip() == lifecycle.diagram()
