"""`SyncCommandBus`: the bus for programs without an event loop. Safe to share between threads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from commandbus.operations import (
    actions,
    batches,
    breakers,
    bulk_troubleshooting,
    canceling,
    chaining,
    commands,
    declaring,
    edits,
    erasure,
    history,
    insight,
    limits,
    lookup,
    parked_notes,
    payload_check,
    presence,
    process_ends,
    processes,
    queues,
    restarts,
    retention,
    schedules,
    sending,
    troubleshooting,
    verification,
    waiting,
    worker_requests,
)
from commandbus.operations.scope import Scope
from commandbus.runtimes import calls
from commandbus.runtimes.base import Acting, BusBase, scope_with
from commandbus.runtimes.threads.facade import blocking, blocking_flow
from commandbus.store.session import Session
from commandbus.store.wakeup import WakeHub
from commandbus.worker.handlers import HandlerRegistry


class _Sending(Acting):
    """The operations that make sense inside a caller's transaction."""

    session: Session
    hub: WakeHub

    if TYPE_CHECKING:
        send: calls.BlockingSend
        get_command: calls.BlockingGet
    else:
        send = blocking(sending.send)
        get_command = blocking(commands.get_command, read=True)
    send_many = blocking(sending.send_many)
    chain = blocking(chaining.chain)
    cancel = blocking(canceling.cancel)
    get_process = blocking(processes.get_process, read=True)
    signal_process = blocking(processes.signal_process)
    cancel_process = blocking(processes.cancel_process)
    end_process = blocking(process_ends.end_process)


class SyncCommandBus(BusBase, _Sending):
    """Sends commands, reads how they ended, and operates queues, schedules, batches and processes.

    `url` is the argument, else COMMANDBUS_URL, else sqlite:///commandbus.db in the current folder;
    further settings are those of BusSettings. Use it as `with SyncCommandBus(url) as bus:`.
    """

    @property
    def session(self) -> Session:  # type: ignore[override]
        return self.engine.session

    def open(self) -> Self:
        """Open the store; the embedded engines create what they need."""
        self.engine.open()
        return self

    def close(self) -> None:
        """Finish calls that have begun, and close the connections to the store."""
        self.engine.close()
        self.hub.wake_all("lost")  # workers that were not stopped end now

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def within(self, connection: Any) -> SyncBusWithin:
        """The same bus inside the caller's own transaction: what is sent exists when, and only when,
        that transaction commits."""
        return SyncBusWithin(self.scope, self.engine.within(connection), self.hub)

    query_commands = blocking(commands.query_commands, read=True)
    look_up = blocking(lookup.look_up, read=True)
    get_audit_trail = blocking(commands.get_audit_trail, read=True)
    if TYPE_CHECKING:
        wait: calls.BlockingWait
        request: calls.BlockingRequest
    else:
        wait = blocking_flow(waiting.wait)
        request = blocking_flow(waiting.request)
    pause = blocking(queues.pause)
    resume = blocking(queues.resume)
    stats = blocking(queues.stats, read=True)
    adopt_queue = blocking(queues.adopt_queue)
    list_domains = blocking(queues.list_domains, read=True)
    purge = blocking(queues.purge)
    why = blocking(insight.why, read=True)
    list_workers = blocking(presence.list_workers, read=True)
    quiet_workers = blocking(worker_requests.quiet_workers)
    resume_workers = blocking(worker_requests.resume_workers)
    stop_workers = blocking(worker_requests.stop_workers)
    set_worker_concurrency = blocking(worker_requests.set_worker_concurrency)
    get_history = blocking(history.get_history, read=True)
    take_samples = blocking(history.take_samples, read=True)
    prune = blocking_flow(retention.prune)
    erase = blocking_flow(erasure.erase)
    check_payloads = blocking_flow(payload_check.check_payloads)
    search_audit = blocking(actions.search_audit, read=True)
    verify_audit = blocking_flow(verification.verify_audit)
    list_actions = blocking(actions.list_actions, read=True)
    list_restarts = blocking(restarts.list_restarts, read=True)
    list_breakers = blocking(breakers.list_breakers, read=True)
    get_breaker = blocking(breakers.get_breaker, read=True)
    open_breaker = blocking(breakers.open_breaker)
    reset_breaker = blocking(breakers.reset_breaker)
    set_limit = blocking(limits.set_limit)
    list_limits = blocking(limits.list_limits, read=True)
    clear_limit = blocking(limits.clear_limit)
    create_batch = blocking(batches.create_batch)
    add_to_batch = blocking(batches.add_to_batch)
    get_batch = blocking(batches.get_batch, read=True)
    list_batches = blocking(batches.list_batches, read=True)
    list_batch_commands = blocking(batches.list_batch_commands, read=True)
    cancel_batch = blocking_flow(batches.cancel_batch)
    reschedule = blocking(edits.reschedule)
    reprioritise = blocking(edits.reprioritise)
    resend = blocking(edits.resend)
    reschedule_many = blocking_flow(edits.reschedule_many)
    reprioritise_many = blocking_flow(edits.reprioritise_many)
    resend_many = blocking_flow(edits.resend_many)
    list_processes = blocking(processes.list_processes, read=True)
    count_processes = blocking(processes.count_processes, read=True)
    get_process_audit = blocking(processes.get_process_audit, read=True)
    wait_process = blocking_flow(processes.wait_process)
    retry_process = blocking(processes.retry_process)
    skip_compensation = blocking(processes.skip_compensation)
    put_schedule = blocking(schedules.put_schedule)
    get_schedule = blocking(schedules.get_schedule, read=True)
    list_schedules = blocking(schedules.list_schedules, read=True)
    enable_schedule = blocking(schedules.enable_schedule)
    disable_schedule = blocking(schedules.disable_schedule)
    delete_schedule = blocking(schedules.delete_schedule)
    declare = blocking(declaring.declare)
    trigger_schedule = blocking(schedules.trigger_schedule)


class SyncHandlerBus(_Sending):
    """The bus of a handler, as `context.bus`: what it sends is sent at once."""

    def __init__(self, scope: Scope, session: Session, hub: WakeHub) -> None:
        self.scope, self.session, self.hub = scope, session, hub


class SyncBusWithin(SyncHandlerBus):
    """A bus inside a caller's transaction; see `SyncCommandBus.within`."""

    def __init__(self, scope: Scope, session: Session, hub: WakeHub) -> None:
        super().__init__(replace(scope, in_callers_transaction=True), session, hub)


class SyncTroubleshootingQueue(Acting):
    """Parked commands, and what an operator can do about them. With the `registry` of
    the handlers, an edited payload is checked against the type of its handler."""

    def __init__(self, bus: SyncCommandBus, registry: HandlerRegistry | None = None) -> None:
        self.scope, self.session, self.hub = scope_with(bus.scope, registry), bus.session, bus.hub

    list_troubleshooting = blocking(troubleshooting.list_troubleshooting, read=True)
    count = blocking(troubleshooting.count, read=True)
    operator_retry = blocking(troubleshooting.operator_retry)
    operator_cancel = blocking(troubleshooting.operator_cancel)
    operator_complete = blocking(troubleshooting.operator_complete)
    comment = blocking(parked_notes.comment)
    assign = blocking(parked_notes.assign)
    list_cases = blocking(parked_notes.list_cases, read=True)
    list_assigned = blocking(parked_notes.list_assigned, read=True)
    group_failures = blocking(bulk_troubleshooting.group_failures, read=True)
    bulk = blocking_flow(bulk_troubleshooting.bulk)
