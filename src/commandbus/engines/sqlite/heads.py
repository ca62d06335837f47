"""Taking the first rows of a queue, as far as a worker may have them."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import Any

from commandbus.domain.priority import rank
from commandbus.store.op import Op, Statement
from commandbus.store.sql_files import load
from commandbus.store.suspects import Admission

SQL = load("commandbus.engines.sqlite.sql", "commands.sql")


def take_head(
    place: str, wanted: int, ageing: int | None, admission: Admission, now: int
) -> Op[Sequence[Any]]:
    """The first rows of a place that the worker may take, which are not there any more."""
    if ageing is None:
        head: Sequence[Any] = yield Statement(SQL.head, (place, wanted))
        if head and not any(row[3] for row in head):
            yield Statement(SQL.take_head, (place, head[-1][1], head[-1][0]))
            return head
    else:
        rows: list[Any] = []
        for (priority,) in (yield Statement(SQL.priorities, {"domain": place})):
            rows += yield Statement(SQL.head_of_priority, (place, priority, wanted))
        head = nsmallest(wanted, rows, key=lambda row: (rank(row[1], row[-1], ageing), row[0]))
    taken = [row for row in head if admission.admits(row[3], now - row[-1])]
    if len(taken) < len(head):
        # What stays must not stand in the way of the rest.
        fresh = yield Statement(SQL.fresh_head, (place, wanted))
        known = {row[0] for row in taken}
        taken += [row for row in fresh if row[0] not in known][: wanted - len(taken)]
    if taken:
        gone = [(place, row[1], row[0]) for row in taken]
        yield Statement(SQL.delete_queue, gone, many=True)
    return taken
