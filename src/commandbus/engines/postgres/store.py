"""The store: all parts of the port, put together over one context."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from commandbus.engines.postgres.arriving import Arrivals
from commandbus.engines.postgres.batches import Batches
from commandbus.engines.postgres.claiming import Claimer
from commandbus.engines.postgres.context import Context
from commandbus.engines.postgres.documents import Documents
from commandbus.engines.postgres.erasing import Eraser
from commandbus.engines.postgres.limits import Limits
from commandbus.engines.postgres.location import Location
from commandbus.engines.postgres.operators import Operators
from commandbus.engines.postgres.processes import Processes
from commandbus.engines.postgres.reads import Reader
from commandbus.engines.postgres.sending import Sender
from commandbus.engines.postgres.settling import Settler
from commandbus.store.capabilities import Capabilities
from commandbus.store.wakeup import WakeHub


class Transport(NamedTuple):
    """The parts that depend on where commands wait: in tables of the bus, or in queues of PGMQ."""

    limits: Limits
    sender: Sender
    settler: Settler
    claimer: Claimer
    reader: Reader
    operators: Operators
    eraser: Eraser
    arrivals: Arrivals


def tables(context: Context, batches: Batches) -> Transport:
    """Commands wait in tables; see sql/0001_schema.sql for what they mean."""
    limits = Limits(context)
    sender = Sender(context, limits)
    settler = Settler(context, sender)
    return Transport(
        limits,
        sender,
        settler,
        Claimer(context, limits, settler),
        Reader(context),
        Operators(context, settler, batches),
        Eraser(context),
        Arrivals(context, sender),
    )


class PostgresStore:
    """Commands in PostgreSQL tables. What it does is what its parts do."""

    capabilities = Capabilities(
        durable=True,
        many_processes=True,
        caller_transactions=True,
        handler_transactions=True,
        streamed_sends=True,
    )

    def __init__(
        self,
        location: Location,
        hub: WakeHub,
        process: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.context = Context(location, hub, process, monotonic=monotonic)
        self.sleepers, self.limit = self.context.sleepers, self.context.limit
        self.consult = self.context.consult
        self._batches = Batches(self.context)
        self.transport = self._transport()
        self._offer_transport(self.transport)
        self._offer_common(self._batches, Documents(self.context), Processes(self.context))

    @property
    def session(self) -> str:
        return self.sleepers.session

    def _transport(self) -> Transport:
        return tables(self.context, self._batches)

    def _offer_transport(self, parts: Transport) -> None:
        self.insert = parts.sender.insert
        self.arrive = parts.arrivals.arrive
        self.claim = parts.claimer.claim
        self.held_by = parts.claimer.held_by
        self.settle = parts.settler.settle
        self.renew = parts.settler.renew
        self.report_progress = parts.settler.report_progress
        self.cancel = parts.operators.cancel
        self.edit_waiting = parts.operators.edit_waiting
        self.revoke = parts.operators.revoke
        self.resolve = parts.operators.resolve
        self.note = parts.operators.note
        self.announce = parts.operators.announce
        self.check = parts.operators.check
        self.set_paused = parts.operators.set_paused
        self.purge = parts.operators.purge
        self.erase = parts.eraser.erase
        self.put_limit = parts.limits.put_limit
        self.drop_limit = parts.limits.drop_limit
        self.limits = parts.limits.limits
        self.take_tokens = parts.limits.take_tokens
        self.key_holder = parts.limits.key_holder
        self.free_key = parts.limits.free_key
        self.held_at = parts.limits.held_at
        self._offer_reads(parts.reader)

    def _offer_reads(self, reader: Reader) -> None:
        self.find = reader.find
        self.endings = reader.endings
        self.query = reader.query
        self.count_parked = reader.count_parked
        self.group_parked = reader.group_parked
        self.overdue = reader.overdue
        self.audit_trail = reader.audit_trail
        self.stats = reader.stats
        self.last_sequence = reader.last_sequence
        self.look_up = reader.look_up
        self.search_audit = reader.search_audit
        self.recent_runs = reader.recent_runs
        self.foreign_leases = reader.foreign_leases
        self.ended_sessions = reader.ended_sessions
        self.count_ahead = reader.count_ahead
        self.domains = reader.domains
        self.prune = reader.prune

    def _offer_common(self, batches: Batches, documents: Documents, processes: Processes) -> None:
        self.add_batch_counts = batches.add_batch_counts
        self.batch_counts = batches.batch_counts
        self.now = documents.now
        self.ledger_mark = documents.ledger_mark
        self.get_document = documents.get_document
        self.get_documents = documents.get_documents
        self.put_document = documents.put_document
        self.delete_document = documents.delete_document
        self.list_documents = documents.list_documents
        self.due_documents = documents.due_documents
        self.next_document_due = documents.next_document_due
        self.add_processes = processes.add_processes
        self.put_processes = processes.put_processes
        self.lock_processes = processes.lock_processes
        self.due_processes = processes.due_processes
        self.next_process_due = processes.next_process_due
        self.get_process = processes.get_process
        self.query_processes = processes.query_processes
        self.count_processes = processes.count_processes
        self.process_events = processes.process_events
        self.recorded_steps = processes.recorded_steps
        self.record_step = processes.record_step
