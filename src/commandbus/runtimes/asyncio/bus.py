"""`CommandBus`: the bus for asyncio programs."""

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
from commandbus.runtimes.asyncio.facade import awaiting, awaiting_flow
from commandbus.runtimes.base import Acting, BusBase, scope_with
from commandbus.store.session import AsyncSession
from commandbus.store.wakeup import WakeHub
from commandbus.worker.handlers import HandlerRegistry


class _Sending(Acting):
    """The operations that make sense inside a caller's transaction."""

    session: AsyncSession
    hub: WakeHub

    if TYPE_CHECKING:
        send: calls.AwaitedSend
        get_command: calls.AwaitedGet
    else:
        send = awaiting(sending.send)
        get_command = awaiting(commands.get_command, read=True)
    send_many = awaiting(sending.send_many)
    chain = awaiting(chaining.chain)
    cancel = awaiting(canceling.cancel)
    get_process = awaiting(processes.get_process, read=True)
    signal_process = awaiting(processes.signal_process)
    cancel_process = awaiting(processes.cancel_process)
    end_process = awaiting(process_ends.end_process)


class CommandBus(BusBase, _Sending):
    """Sends commands, reads how they ended, and operates queues, schedules, batches and processes.

    `url` is the argument, else COMMANDBUS_URL, else sqlite:///commandbus.db in the current folder;
    further settings are those of BusSettings. Use it as `async with CommandBus(url) as bus:`.
    """

    @property
    def session(self) -> AsyncSession:  # type: ignore[override]
        return self.engine.async_session

    async def open(self) -> Self:
        """Open the store; the embedded engines create what they need."""
        await self.engine.open_async()
        return self

    async def close(self) -> None:
        """Finish calls that have begun, and close the connections to the store."""
        await self.engine.close_async()
        self.hub.wake_all("lost")  # workers that were not stopped end now

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def within(self, connection: Any) -> BusWithin:
        """The same bus inside the caller's own transaction: what is sent exists when, and only when,
        that transaction commits."""
        return BusWithin(self.scope, self.engine.within_async(connection), self.hub)

    query_commands = awaiting(commands.query_commands, read=True)
    look_up = awaiting(lookup.look_up, read=True)
    get_audit_trail = awaiting(commands.get_audit_trail, read=True)
    if TYPE_CHECKING:
        wait: calls.AwaitedWait
        request: calls.AwaitedRequest
    else:
        wait = awaiting_flow(waiting.wait)
        request = awaiting_flow(waiting.request)
    pause = awaiting(queues.pause)
    resume = awaiting(queues.resume)
    stats = awaiting(queues.stats, read=True)
    adopt_queue = awaiting(queues.adopt_queue)
    list_domains = awaiting(queues.list_domains, read=True)
    purge = awaiting(queues.purge)
    why = awaiting(insight.why, read=True)
    list_workers = awaiting(presence.list_workers, read=True)
    quiet_workers = awaiting(worker_requests.quiet_workers)
    resume_workers = awaiting(worker_requests.resume_workers)
    stop_workers = awaiting(worker_requests.stop_workers)
    set_worker_concurrency = awaiting(worker_requests.set_worker_concurrency)
    get_history = awaiting(history.get_history, read=True)
    take_samples = awaiting(history.take_samples, read=True)
    prune = awaiting_flow(retention.prune)
    erase = awaiting_flow(erasure.erase)
    check_payloads = awaiting_flow(payload_check.check_payloads)
    search_audit = awaiting(actions.search_audit, read=True)
    verify_audit = awaiting_flow(verification.verify_audit)
    list_actions = awaiting(actions.list_actions, read=True)
    list_restarts = awaiting(restarts.list_restarts, read=True)
    list_breakers = awaiting(breakers.list_breakers, read=True)
    get_breaker = awaiting(breakers.get_breaker, read=True)
    open_breaker = awaiting(breakers.open_breaker)
    reset_breaker = awaiting(breakers.reset_breaker)
    set_limit = awaiting(limits.set_limit)
    list_limits = awaiting(limits.list_limits, read=True)
    clear_limit = awaiting(limits.clear_limit)
    create_batch = awaiting(batches.create_batch)
    add_to_batch = awaiting(batches.add_to_batch)
    get_batch = awaiting(batches.get_batch, read=True)
    list_batches = awaiting(batches.list_batches, read=True)
    list_batch_commands = awaiting(batches.list_batch_commands, read=True)
    cancel_batch = awaiting_flow(batches.cancel_batch)
    reschedule = awaiting(edits.reschedule)
    reprioritise = awaiting(edits.reprioritise)
    resend = awaiting(edits.resend)
    reschedule_many = awaiting_flow(edits.reschedule_many)
    reprioritise_many = awaiting_flow(edits.reprioritise_many)
    resend_many = awaiting_flow(edits.resend_many)
    list_processes = awaiting(processes.list_processes, read=True)
    count_processes = awaiting(processes.count_processes, read=True)
    get_process_audit = awaiting(processes.get_process_audit, read=True)
    wait_process = awaiting_flow(processes.wait_process)
    retry_process = awaiting(processes.retry_process)
    skip_compensation = awaiting(processes.skip_compensation)
    put_schedule = awaiting(schedules.put_schedule)
    get_schedule = awaiting(schedules.get_schedule, read=True)
    list_schedules = awaiting(schedules.list_schedules, read=True)
    enable_schedule = awaiting(schedules.enable_schedule)
    disable_schedule = awaiting(schedules.disable_schedule)
    delete_schedule = awaiting(schedules.delete_schedule)
    declare = awaiting(declaring.declare)
    trigger_schedule = awaiting(schedules.trigger_schedule)


class HandlerBus(_Sending):
    """The bus of a handler, as `context.bus`: what it sends is sent at once."""

    def __init__(self, scope: Scope, session: AsyncSession, hub: WakeHub) -> None:
        self.scope, self.session, self.hub = scope, session, hub


class BusWithin(HandlerBus):
    """A bus inside a caller's transaction; see `CommandBus.within`."""

    def __init__(self, scope: Scope, session: AsyncSession, hub: WakeHub) -> None:
        super().__init__(replace(scope, in_callers_transaction=True), session, hub)


class TroubleshootingQueue(Acting):
    """Parked commands, and what an operator can do about them. With the `registry` of
    the handlers, an edited payload is checked against the type of its handler."""

    def __init__(self, bus: CommandBus, registry: HandlerRegistry | None = None) -> None:
        self.scope, self.session, self.hub = scope_with(bus.scope, registry), bus.session, bus.hub

    list_troubleshooting = awaiting(troubleshooting.list_troubleshooting, read=True)
    count = awaiting(troubleshooting.count, read=True)
    operator_retry = awaiting(troubleshooting.operator_retry)
    operator_cancel = awaiting(troubleshooting.operator_cancel)
    operator_complete = awaiting(troubleshooting.operator_complete)
    comment = awaiting(parked_notes.comment)
    assign = awaiting(parked_notes.assign)
    list_cases = awaiting(parked_notes.list_cases, read=True)
    list_assigned = awaiting(parked_notes.list_assigned, read=True)
    group_failures = awaiting(bulk_troubleshooting.group_failures, read=True)
    bulk = awaiting_flow(bulk_troubleshooting.bulk)
