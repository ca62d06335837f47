"""What services, operators and processes do beside the way of a command is all or nothing, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.outcome import Outcome, Parked, Released
from commandbus.domain.presence import WorkerRestart
from commandbus.domain.process.declaration import Process
from commandbus.domain.unique import Unique
from commandbus.operations import (
    canceling,
    erasure,
    fleet_starts,
    history,
    ledger,
    parked_notes,
    presence,
    restarts,
    routing,
    schedules,
    uniqueness,
)
from commandbus.operations.deaths import recover
from commandbus.store.deaths import WorkerDeath
from commandbus.store.documents import Document
from commandbus.store.op import Op
from commandbus.store.records import Claimed, ClaimRequest, Settlement
from commandbus.testing.conformance.atomicity import fails_at_every_step
from commandbus.testing.conformance.helpers import park
from commandbus.testing.conformance.worker_requests import report
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.sagas import Approved, Leg, Sagas, Timed, Tour, Trip

MONTH = 31 * 86_400.0
LONG = 7_200.0
"""A lease that outlasts a test."""


def claim(bus: Harness, *domains: str) -> list[Claimed]:
    request = ClaimRequest(domains or (DOMAIN,), 100, "w", LONG)
    return list(bus.run(bus.store.claim(request)).claimed)


def settle(bus: Harness, claimed: Claimed, outcome: Outcome) -> None:
    settlement = Settlement(claimed.seq, claimed.lease_id, claimed.attempt, outcome)
    bus.run(bus.store.settle([settlement]))


def running(bus: Harness) -> tuple[UUID, Claimed]:
    """A command under a lease."""
    command_id = bus.send(reply_to="answers")
    (claimed,) = claim(bus)
    return command_id, claimed


def put(bus: Harness, document: Document) -> None:
    assert bus.run(bus.store.put_document(document))


def steps_of(bus: Harness, build: Callable[[], Op[Any]]) -> int:
    """Let an op fail after each of its steps; returns how many it had."""
    return fails_at_every_step(bus, lambda: bus.run(build()))


class AtomicServicesSuite:
    def test_a_purge_changes_the_open_batches_of_its_domain_all_or_nothing(self, bus: Harness) -> None:
        ship = SendRequest(DOMAIN, "ship")
        bus.call(bus.bus.create_batch, [ship, ship])
        bus.call(bus.bus.create_batch, [ship, SendRequest("billing", "bill")])
        worker = bus.worker()
        bus.call(worker.complete, bus.take(worker))
        assert fails_at_every_step(bus, partial(bus.call, bus.bus.purge, DOMAIN)) >= 4

    @pytest.mark.parametrize("by", ["an operator", "its process"])
    def test_a_request_to_cancel_is_carried_out_later_all_or_nothing(
        self, bus: Harness, by: str
    ) -> None:
        scope = bus.bus.scope
        command_id, claimed = running(bus)
        if by == "an operator":
            bus.call(bus.bus.cancel, command_id, reason="no")
        else:
            bus.run(canceling.call_off(scope, DOMAIN, command_id, "undone", awaited=False))
        settle(bus, claimed, Released("its worker stopped"))
        assert steps_of(bus, lambda: canceling.open_requests(scope, [DOMAIN])) >= 3
        assert bus.get(command_id).status == "CANCELED"

    def test_a_retry_withdraws_a_request_to_cancel_all_or_nothing(self, bus: Harness) -> None:
        command_id, claimed = running(bus)
        bus.call(bus.bus.cancel, command_id, reason="no")
        settle(bus, claimed, Parked(Failure(FailureKind.PERMANENT, "BROKEN", "no"), "PERMANENT"))
        retry = partial(bus.call, bus.troubleshooting.operator_retry, command_id)
        assert fails_at_every_step(bus, retry) >= 4

    def test_what_a_dead_worker_held_goes_back_all_or_nothing(self, bus: Harness) -> None:
        bus.call(bus.bus.create_batch, [SendRequest(DOMAIN, "ship"), SendRequest(DOMAIN, "ship")])
        assert len(claim(bus)) == 2
        death = WorkerDeath("w", "Its worker was killed", complete=False)
        assert steps_of(bus, lambda: recover(bus.bus.scope, death)) >= 2

    def test_escalations_are_recorded_and_sent_all_or_nothing(self, bus: Harness) -> None:
        park(bus)
        park(bus)
        bus.advance(120)
        scope = bus.bus.scope
        assert steps_of(bus, lambda: parked_notes.escalate(scope, 60.0, "alerts", 10.0)) >= 6
        assert len(bus.query(domain="alerts")) == 2

    def test_cases_windows_and_dead_workers_are_forgotten_all_or_nothing(self, bus: Harness) -> None:
        scope, desk = bus.bus.scope, bus.troubleshooting
        kept, resolved = park(bus), park(bus)
        for command_id in (kept, resolved):
            bus.call(desk.assign, command_id, "ben")
        bus.call(desk.operator_cancel, resolved, reason="no")
        for key in ("a", "b"):
            bus.send(unique_key=key, unique=Unique(window=60))
        bus.call(bus.bus.quiet_workers, [report(bus).name])
        bus.advance(MONTH)
        assert steps_of(bus, lambda: parked_notes.forget_cases(scope)) >= 2
        assert steps_of(bus, lambda: uniqueness.forget_windows(scope)) >= 2
        assert steps_of(bus, lambda: presence.forget_dead_workers(scope)) >= 2

    def test_starts_restarts_and_samples_replace_old_ones_all_or_nothing(self, bus: Harness) -> None:
        scope, info = bus.bus.scope, report(bus)
        now = datetime.now(UTC)
        restart = WorkerRestart(info.name, "host", 1, now, "stuck")
        bus.send()
        put(bus, Document(fleet_starts.KIND, "old", 0, "done", 1, "{}"))
        put(bus, Document(restarts.KIND, "old", 0, "done", 1, "{}"))
        put(bus, Document(history._kind(history.Grain.MINUTE, DOMAIN), "old", 0, "kept", 1, "[]"))
        assert steps_of(bus, lambda: fleet_starts.record_start(scope, info)) >= 3
        assert steps_of(bus, lambda: restarts.record_restart(scope, restart)) >= 3
        assert steps_of(bus, lambda: history.record_history(scope)) >= 3

    def test_single_writes_of_services_leave_nothing_when_they_fail(self, bus: Harness) -> None:
        scope, info = bus.bus.scope, report(bus)
        put(bus, Document(schedules.KIND, "broken", 0, "on", 1, "{"))
        _, claimed = running(bus)
        assert steps_of(bus, lambda: presence.report_worker(scope, info, 1)) >= 1
        assert steps_of(bus, lambda: history.take_turn(scope)) >= 1
        assert steps_of(bus, lambda: schedules.tick(scope)) >= 1
        assert steps_of(bus, lambda: routing.park_reply(scope, claimed, ValueError("no"))) >= 1

    def test_an_action_in_a_callers_transaction_is_linked_later_all_or_nothing(
        self, bus: Harness
    ) -> None:
        command_id = bus.send(delay=3600)

        def cancel() -> None:
            scope = replace(bus.bus.scope, in_callers_transaction=True)
            bus.run(canceling.cancel(scope, command_id))

        assert fails_at_every_step(bus, cancel) >= 4
        assert steps_of(bus, lambda: ledger.link_open(bus.bus.scope)) >= 4

    def test_links_and_windows_of_a_command_are_erased_with_it(self, bus: Harness) -> None:
        command_id = park(bus, unique_key="k", unique=Unique(window=3600))
        bus.call(bus.troubleshooting.operator_cancel, command_id, reason="no")
        work = erasure._Work("ada", "asked for", False, False)
        records = [bus.get(command_id)]
        scope = bus.bus.scope
        assert steps_of(bus, lambda: erasure._erase_piece(scope, records, work)) >= 6

    def test_a_key_is_taken_from_a_running_command_all_or_nothing(self, bus: Harness) -> None:
        bus.send(unique_key="k")
        assert claim(bus)
        again = partial(bus.send, unique_key="k", unique=Unique(states=("PENDING",)))
        assert fails_at_every_step(bus, again) >= 2

    def test_a_batch_of_processes_is_started_and_counted_all_or_nothing(self, bus: Harness) -> None:
        sagas = Sagas(bus, Leg)
        bus.call(sagas.manager.create_batch, [Trip()])
        sagas.done("leg_hotel", "Grand")
        sagas.end("leg_pay")
        assert steps_of(bus, _routing(bus, sagas)) >= 4
        manager = bus.manager_class(bus.bus, Timed)
        assert fails_at_every_step(bus, partial(bus.call, manager.create_batch, [Trip()])) >= 4

    @pytest.mark.parametrize(("process", "first"), [(Tour, "plan"), (Approved, "ask")])
    def test_a_process_that_waits_or_starts_another_goes_on_all_or_nothing(
        self, bus: Harness, process: type[Process[Any]], first: str
    ) -> None:
        sagas = Sagas(bus, process, Leg)
        sagas.start()
        sagas.end(first)
        assert steps_of(bus, _routing(bus, sagas)) >= 4


def _routing(bus: Harness, sagas: Sagas) -> Callable[[], Op[Any]]:
    """Routes the replies that have come."""
    claimed = claim(bus, *{one.reply_to for one in sagas.declarations.values()})
    assert claimed
    return lambda: routing.route(bus.bus.scope, sagas.declarations, claimed, "router")
