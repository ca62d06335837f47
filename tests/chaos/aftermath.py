"""When all is over: everything that the store has, as the checker reads it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

from commandbus import BatchRecord, BatchStatus, CommandRecord, CommandStatus
from commandbus.sync import SyncCommandBus
from tests.chaos.case import Batch, Final, Store, Trace
from tests.chaos.kinds import BATCH_DONE, DOMAINS, attempts_max_of

OPEN = {BatchStatus.PENDING, BatchStatus.IN_PROGRESS}
PAGE = 1_000


def look(bus: SyncCommandBus, effects: tuple[tuple[str, int], ...], audited: set[int]) -> Store:
    """`audited` are the commands with events of their own; the trails of others are told by their
    records, of which one in fifty is asked for all the same: asking for each takes minutes."""
    finals: list[Final] = []
    held: list[str] = []
    for domain in DOMAINS:
        records = list(_commands(bus, domain))
        for record in records:
            asked = record.sequence in audited or record.sequence % 50 == 0
            finals.append(_final(record, _trail(bus, record) if asked else _plain_trail(record)))
        # Only what is parked is alive, and keeps its key; whoever asks for another must get it.
        parked = {r.unique_key for r in records if r.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE}
        for key in sorted({r.unique_key for r in records if r.unique_key} - parked):
            if bus.send(domain, "note", command_id=uuid4(), unique_key=key).duplicate:
                held.append(f"{domain} {key}")
    return Store(tuple(finals), tuple(map(_batch, _batches(bus))), effects, tuple(held))


def closable_batches(bus: SyncCommandBus) -> int:
    """Batches that are open, though nothing holds them open but commands that are under way."""
    return sum(b.status in OPEN and not b.in_troubleshooting for b in _batches(bus))


def _commands(bus: SyncCommandBus, domain: str) -> Iterator[CommandRecord]:
    after: str | None = None
    while True:
        page = bus.query_commands(domain=domain, limit=PAGE, after=after)
        yield from page
        if (after := page.next) is None:
            return


def _batches(bus: SyncCommandBus) -> Iterator[BatchRecord]:
    for domain in DOMAINS:
        after: str | None = None
        while True:
            page = bus.list_batches(domain, limit=PAGE, after=after)
            yield from page.batches
            if (after := page.next) is None:
                break


def _trail(bus: SyncCommandBus, record: CommandRecord) -> tuple[Trace, ...]:
    return tuple(
        Trace(event.event_type.value, event.timestamp.timestamp(), event.details)
        for event in bus.get_audit_trail(record.command_id, record.domain)
    )


def _plain_trail(record: CommandRecord) -> tuple[Trace, ...]:
    """Of a command to which nothing happened but to be sent, received and completed."""
    trail = [Trace("SENT", record.created_at.timestamp())]
    if record.started_at and record.finished_at and record.status is CommandStatus.COMPLETED:
        trail.append(Trace("RECEIVED", record.started_at.timestamp()))
        trail.append(Trace("COMPLETED", record.finished_at.timestamp()))
    return tuple(trail)


def _final(record: CommandRecord, trail: tuple[Trace, ...]) -> Final:
    batch = record.data["batch"] if record.command_type == BATCH_DONE else record.batch_id
    return Final(
        str(record.command_id),
        record.status.value,
        record.attempts,
        record.crashes,
        attempts_max_of(record.command_type),
        record.priority,
        record.sequence,
        record.reason,
        record.error.code if record.error else None,
        trail,
        record.command_type,
        record.unique_key,
        None if batch is None else str(batch),
    )


def _batch(record: BatchRecord) -> Batch:
    return Batch(
        str(record.batch_id),
        record.total,
        record.completed,
        record.failed,
        record.canceled,
        record.in_troubleshooting,
        record.status not in OPEN,
    )
