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


def look(bus: SyncCommandBus, effects: tuple[tuple[str, int], ...]) -> Store:
    finals: list[Final] = []
    held: list[str] = []
    for domain in DOMAINS:
        records = list(_commands(bus, domain))
        finals += [_final(bus, record) for record in records]
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


def _final(bus: SyncCommandBus, record: CommandRecord) -> Final:
    trail = tuple(
        Trace(event.event_type.value, event.timestamp.timestamp(), event.details)
        for event in bus.get_audit_trail(record.command_id, record.domain)
    )
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
