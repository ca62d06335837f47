"""Which outcomes become receipts, each of which is one row for many commands; see decision 52."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from commandbus.domain.lifecycle import CommandStatus
from commandbus.store.settling import OutcomeRow

SPAN = 512
"""Numbers of one receipt lie so close together: look-ups search so far (see the functions in SQL)."""
MEMBERS_MIN = 32
"""Fewer commands are written as rows, so that a look-up meets few receipts: `2 * SPAN / MEMBERS_MIN` at
most, and one or two in an ordinary drain."""
RAN_END = 2**31
"""Microseconds of a run that a receipt can tell: 35 minutes."""

_seq = attrgetter("seq")


class Receipt(NamedTuple):
    """The outcomes of commands that completed at their first attempt, without a result, under one
    lease. `ran` is an array in SQL: how long each took, by its number."""

    proof: int
    first_seq: int
    last_seq: int
    members: int
    ran: str


class Folded(NamedTuple):
    """Outcomes in their two shapes."""

    receipts: Sequence[Receipt]
    rows: Sequence[OutcomeRow]


def fold(outcomes: Sequence[OutcomeRow], proofs: Mapping[int, int]) -> Folded:
    """Receipts for as many of these outcomes as there can be; each of them is proved by its lease."""
    plain: defaultdict[int, list[OutcomeRow]] = defaultdict(list)
    rows: list[OutcomeRow] = []
    for row in outcomes:
        if is_plain(row) and 0 <= row.ran < RAN_END:
            plain[proofs[row.seq]].append(row)
        else:
            rows.append(row)
    receipts: list[Receipt] = []
    for proof, members in plain.items():
        members.sort(key=_seq)
        first, count = 0, len(members)
        while first < count:
            end = _end_of(members, first)
            if end - first < MEMBERS_MIN:
                rows += members[first:end]
            else:
                receipts.append(_receipt(proof, members[first:end]))
            first = end
    return Folded(receipts, rows)


def is_plain(row: OutcomeRow) -> bool:
    """Whether nothing is to be said of a run but how long it took."""
    if row.attempts != 1 or row.crashes or row.status is not CommandStatus.COMPLETED:
        return False
    return row.result is None and row.error is None and row.reason is None


def _end_of(members: Sequence[OutcomeRow], first: int) -> int:
    """The end of those from the first on that fit into one receipt."""
    limit = members[first].seq + SPAN
    if members[-1].seq < limit:
        return len(members)
    return next(at for at in range(first, len(members)) if members[at].seq >= limit)


def _receipt(proof: int, members: Sequence[OutcomeRow]) -> Receipt:
    first, last = members[0].seq, members[-1].seq
    if last - first + 1 == len(members):
        ran = [str(row.ran) for row in members]
    else:
        ran = ["NULL"] * (last - first + 1)
        for row in members:
            ran[row.seq - first] = str(row.ran)
    return Receipt(proof, first, last, len(members), f"{{{','.join(ran)}}}")
