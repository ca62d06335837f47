"""Taking the first rows of a queue, as far as a worker may have them."""

from __future__ import annotations

from heapq import nsmallest

from commandbus.domain.audit import AuditEventType
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.priority import rank
from commandbus.engines.sqlite.queries import load_queries
from commandbus.engines.sqlite.rows import Head, as_heads, as_id
from commandbus.store.op import Op, Statement
from commandbus.store.records import ClaimRequest, NewCommand
from commandbus.store.replies import reply_to_expired
from commandbus.store.settling import AuditRow
from commandbus.store.suspects import Admission

SQL = load_queries("commands.sql")


def take_head(
    partition: str, wanted: int, request: ClaimRequest, admission: Admission, now: int
) -> Op[list[Head]]:
    """The first rows of a partition that the worker may take, which are not there any more."""
    if request.priority is not None:
        chosen = (partition, request.priority, wanted)
        head = as_heads((yield Statement(SQL.head_of_priority, chosen)))
    elif request.ageing is not None:
        head = yield from _aged(partition, wanted, request.ageing)
    else:
        head = as_heads((yield Statement(SQL.head, (partition, wanted))))
        if head and not any(row.crashes for row in head):
            last = head[-1]
            yield Statement(SQL.take_head, (partition, last.priority, last.seq))
            return head
    taken = [
        row
        for row in head
        if row.is_unfit(now) or admission.admits(row.crashes, now - row.available_at)
    ]
    if len(taken) < len(head) and request.priority is None:
        # What stays must not stand in the way of the rest.
        fresh = as_heads((yield Statement(SQL.fresh_head, (partition, wanted))))
        known = {row.seq for row in taken}
        taken += [row for row in fresh if row.seq not in known][: wanted - len(taken)]
    if taken:
        gone = [(partition, row.priority, row.seq) for row in taken]
        yield Statement(SQL.delete_queue, gone, many=True)
    return taken


def _aged(partition: str, wanted: int, ageing: int) -> Op[list[Head]]:
    """The first rows by priority and by how long they have waited."""
    rows: list[Head] = []
    for (priority,) in (yield Statement(SQL.priorities, {"domain": partition})):
        rows += as_heads((yield Statement(SQL.head_of_priority, (partition, priority, wanted))))

    def turn(row: Head) -> tuple[int, int]:
        return rank(row.priority, row.available_at, ageing), row.seq

    return nsmallest(wanted, rows, key=turn)


def expired_reply(domain: str, reply_to: str, command_type: str, head: Head) -> NewCommand:
    return reply_to_expired(
        reply_to,
        command_id=as_id(head.command_id),
        domain=domain,
        command_type=command_type,
        correlation_id=as_id(head.correlation_id),
    )


def orphan(domain: str, seq: int, has: str) -> AuditRow:
    """What operators see of a row that waits, and has no command that could be run."""
    code = "ORPHAN" if has == "no command" else "DAMAGED"
    words = f"Queue row {seq} of domain {domain!r} has {has}; the file was changed by hand."
    failure = Failure(FailureKind.PERMANENT, code, words)
    return AuditRow(seq, AuditEventType.MOVED_TO_TSQ, {"error": failure})
