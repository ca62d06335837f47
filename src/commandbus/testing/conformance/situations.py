"""Staged situations in which `why` has to be right; docs/guide/why.md is made of this table."""

from __future__ import annotations

from commandbus.testing.conformance import situations_before, situations_running
from commandbus.testing.conformance.helpers import TABLE, Stage
from commandbus.testing.harness import Harness

STAGED = (situations_before, situations_running)
"""What fills the table."""


class SituationsSuite:
    def test_why_is_right_in_every_situation(self, bus: Harness) -> None:
        """Each in a domain of its own of one store, because an empty store takes longer than all."""
        wrong: list[str] = []
        for number, one in enumerate(TABLE):
            if one.needs and not getattr(bus.capabilities, one.needs):
                continue
            wanted = one.stage(Stage(bus, f"place{number}"))
            answer = bus.call(bus.bus.why, wanted)
            codes = tuple(reason.code for reason in answer.reasons)
            if codes != one.codes or one.says not in answer.summary:
                wrong.append(f"{one.title}: {codes} {answer.summary!r}")
        assert not wrong, "\n".join(wrong)


def render() -> str:
    """The table as the guide shows it, in the order of the codes, by which readers look for it."""
    rows = [
        f"| {', '.join(f'`{code}`' for code in one.codes)} | {one.title} | {one.cure} |"
        for one in sorted(TABLE, key=lambda one: one.codes)
    ]
    return "\n".join(("| codes | situation | what to do |", "|---|---|---|", *rows))
