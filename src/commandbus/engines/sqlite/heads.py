"""Taking the first rows of a queue, as far as a worker may have them."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import Any

from commandbus.domain.lifecycle import ReplyOutcome
from commandbus.domain.priority import rank
from commandbus.engines.sqlite.rows import as_id
from commandbus.store.op import Op, Statement
from commandbus.store.records import ClaimRequest, NewCommand
from commandbus.store.replies import reply_command
from commandbus.store.sql_files import load
from commandbus.store.suspects import Admission

SQL = load("commandbus.engines.sqlite.sql", "commands.sql")


def is_unfit(row: Any, now: int) -> bool:
    """Whether a row of the query `head` has no sound command, or one that has expired."""
    return row[5] is None or (row[13] is not None and row[13] <= now)


def take_head(
    place: str, wanted: int, request: ClaimRequest, admission: Admission, now: int
) -> Op[Sequence[Any]]:
    """The first rows of a place that the worker may take, which are not there any more."""
    if request.priority is not None:
        head: Sequence[Any] = yield Statement(SQL.head_of_priority, (place, request.priority, wanted))
    elif request.ageing is not None:
        head = yield from _aged(place, wanted, request.ageing)
    else:
        head = yield Statement(SQL.head, (place, wanted))
        if head and not any(row[3] for row in head):
            yield Statement(SQL.take_head, (place, head[-1][1], head[-1][0]))
            return head
    taken = [row for row in head if is_unfit(row, now) or admission.admits(row[3], now - row[-1])]
    if len(taken) < len(head) and request.priority is None:
        # What stays must not stand in the way of the rest.
        fresh = yield Statement(SQL.fresh_head, (place, wanted))
        known = {row[0] for row in taken}
        taken += [row for row in fresh if row[0] not in known][: wanted - len(taken)]
    if taken:
        gone = [(place, row[1], row[0]) for row in taken]
        yield Statement(SQL.delete_queue, gone, many=True)
    return taken


def _aged(place: str, wanted: int, ageing: int) -> Op[Sequence[Any]]:
    """The first rows by priority and by how long they have waited."""
    rows: list[Any] = []
    for (priority,) in (yield Statement(SQL.priorities, {"domain": place})):
        rows += yield Statement(SQL.head_of_priority, (place, priority, wanted))
    return nsmallest(wanted, rows, key=lambda row: (rank(row[1], row[-1], ageing), row[0]))


def reply_to_expired(domain: str, row: Any) -> NewCommand:
    """Of a row of the query `head`."""
    return reply_command(
        row[10],
        command_id=as_id(row[6]),
        domain=domain,
        command_type=row[5],
        correlation_id=as_id(row[8]),
        outcome=ReplyOutcome.CANCELED,
        reason="EXPIRED",
    )
