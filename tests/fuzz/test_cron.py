"""Any text is a schedule or a typed error, and occurrences only move forward."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from commandbus import CommandBusError, Schedule
from tests.fuzz.fuzzing import fuzzed, texts

part = st.one_of(
    st.integers(-2, 70).map(str),
    st.sampled_from(["*", "*/5", "1-5", "5-1", "1,2,3", "*/0", "L", "MON", "JAN", "7#5", "W", "?", ""]),
    st.text("0123456789*/-,#L", max_size=6),
)
crons = st.one_of(st.lists(part, min_size=4, max_size=6).map(" ".join), texts)
zones = st.one_of(
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu"]), texts
)
FIRST = datetime(2024, 3, 30, 22, 0, tzinfo=UTC)


@fuzzed(cron=crons, timezone=zones, every=st.one_of(st.none(), st.floats(), st.integers()))
def test_a_schedule_is_refused_in_words_or_moves_forward(cron: str, timezone: str, every: Any) -> None:
    when = {"cron": cron} if every is None else {"every": every}
    try:
        schedule = Schedule(name="s", domain="d", command_type="t", timezone=timezone, **when).checked()
    except CommandBusError:
        return
    occurrences = list(islice(schedule.occurrences_after(FIRST), 5))
    assert all(occurrence > FIRST for occurrence in occurrences)
    assert occurrences == sorted(set(occurrences))
    ids = {schedule.command_id(occurrence, UUID(int=1)) for occurrence in occurrences}
    assert len(ids) == len(occurrences)
    if occurrences:
        assert schedule.newest_occurrence(occurrences[0], occurrences[0]) == occurrences[0]
