"""Batches: created whole, counted right at every moment, completed once."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus.domain.batch import BatchRecord, BatchStatus
from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.unique import Unique
from commandbus.errors import (
    BatchNotFoundError,
    BusinessRuleException,
    DuplicateCommandError,
    InvalidArgumentError,
    InvalidOperationError,
    PayloadError,
    PermanentCommandError,
)
from commandbus.operations.batches import CancelBatchResult, close_batches
from commandbus.testing.conformance.helpers import registry_of, spy_on, together
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.sagas import BookTrip, Trip
from commandbus.testing.waiting import PATIENCE_SECONDS, eventually
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.handlers import HandlerRegistry


def create(bus: Harness, count: int = 3, **options: Any) -> UUID:
    commands = [SendRequest(DOMAIN, "ship", {"n": n}) for n in range(count)]
    result = bus.call(bus.bus.create_batch, commands, **options)
    assert result.total == len(result.command_ids) == count
    batch_id: UUID = result.batch_id
    return batch_id


def get(bus: Harness, batch_id: UUID) -> BatchRecord:
    record: BatchRecord = bus.call(bus.bus.get_batch, batch_id)
    return record


def counts(bus: Harness, batch_id: UUID) -> tuple[int, int, int, int]:
    """Completed, failed, canceled, parked; and they equal what the commands say."""
    batch = get(bus, batch_id)
    members = bus.call(bus.bus.list_batch_commands, batch_id, limit=1000)
    statuses = [record.status for record in members]
    found = (batch.completed, batch.failed, batch.canceled, batch.in_troubleshooting)
    assert found == (
        statuses.count(CommandStatus.COMPLETED),
        statuses.count(CommandStatus.FAILED),
        statuses.count(CommandStatus.CANCELED),
        statuses.count(CommandStatus.IN_TROUBLESHOOTING_QUEUE),
    )
    assert batch.total == len(statuses)
    return found


def settle(bus: Harness, *ends: BaseException | None) -> None:
    """Take as many commands and end them like this, in order."""
    worker = bus.worker()
    for end in ends:
        received = bus.take(worker)
        if end is None:
            bus.call(worker.complete, received)
        else:
            bus.call(worker.fail, received, end)


def close(bus: Harness, batch_id: UUID) -> int:
    return bus.run(close_batches(bus.bus.scope, [batch_id]))


class BatchSuite:
    def test_a_new_batch_is_pending_with_its_data(self, bus: Harness) -> None:
        batch = get(bus, create(bus, 3, name="october", custom_data={"by": "ann"}))
        assert (batch.status, batch.total, batch.remaining) == (BatchStatus.PENDING, 3, 3)
        assert (batch.name, batch.custom_data) == ("october", {"by": "ann"})

    def test_creation_is_all_or_nothing(self, bus: Harness) -> None:
        taken = bus.send()
        commands = [SendRequest(DOMAIN, "ship"), SendRequest(DOMAIN, "ship", command_id=taken)]
        batch_id = uuid4()
        with pytest.raises(DuplicateCommandError):
            bus.call(bus.bus.create_batch, commands, batch_id=batch_id)
        assert bus.call(bus.bus.get_batch, batch_id) is None
        assert bus.stats().ready == 1

    def test_counts_follow_every_kind_of_end(self, bus: Harness) -> None:
        batch_id = create(bus, 5)
        settle(bus, None, BusinessRuleException("NO"), PermanentCommandError("BAD"), KeyError("x"))
        assert counts(bus, batch_id) == (1, 1, 0, 1)
        assert get(bus, batch_id).status is BatchStatus.IN_PROGRESS
        waiting = bus.query(domain=DOMAIN, status="PENDING")
        bus.cancel(waiting[0].command_id)
        assert counts(bus, batch_id) == (1, 1, 1, 1)

    def test_an_end_by_an_operator_is_announced_to_processes_that_close_batches(
        self, bus: Harness
    ) -> None:
        create(bus, 1)
        (waiting,) = bus.query(domain=DOMAIN, status="PENDING")
        with spy_on(bus.store, "announce") as announced:
            bus.cancel(waiting.command_id)
        assert announced.calls == 1

    def test_a_running_command_makes_it_in_progress(self, bus: Harness) -> None:
        batch_id = create(bus)
        bus.take(bus.worker())
        assert get(bus, batch_id).status is BatchStatus.IN_PROGRESS

    def test_a_parked_command_holds_it_open(self, bus: Harness) -> None:
        batch_id = create(bus, 2)
        settle(bus, None, PermanentCommandError("BAD"))
        assert close(bus, batch_id) == 0
        assert get(bus, batch_id).status is BatchStatus.IN_PROGRESS

    @pytest.mark.parametrize(
        ("decide", "expected"),
        [
            (Harness.operator_retry, (1, 0, 0, 0)),
            (Harness.operator_cancel, (1, 0, 1, 0)),
            (Harness.operator_complete, (2, 0, 0, 0)),
        ],
    )
    def test_operators_move_its_counts(
        self, bus: Harness, decide: Any, expected: tuple[int, int, int, int]
    ) -> None:
        batch_id = create(bus, 2)
        settle(bus, None, PermanentCommandError("BAD"))
        (parked,) = bus.call(bus.troubleshooting.list_troubleshooting)
        decide(bus, parked.command_id)
        assert counts(bus, batch_id) == expected

    def test_crashes_that_park_are_counted(self, bus: Harness) -> None:
        batch_id = create(bus, 1)
        for _ in range(3):
            bus.take(bus.worker(), visibility_timeout=5)
            bus.advance(6)
        assert bus.receive(bus.worker()) == []
        assert counts(bus, batch_id) == (0, 0, 0, 1)

    def test_completion_is_sent_once_by_any_worker(self, bus: Harness) -> None:
        batch_id = create(bus, 2, on_complete=SendRequest("billing", "invoice", {"x": 1}))
        settle(bus, None, None)
        results = together(6, lambda _: close(bus, batch_id))
        assert sum(r for r in results if isinstance(r, int)) == 1
        (completion,) = bus.query(domain="billing")
        assert (completion.command_type, completion.data) == ("invoice", {"x": 1})
        assert completion.headers == {"batch_id": str(batch_id), "batch_status": "COMPLETED"}
        batch = get(bus, batch_id)
        assert (batch.status, batch.progress) == (BatchStatus.COMPLETED, 1.0)
        assert batch.completed_at is not None

    @pytest.mark.parametrize(
        "option",
        [
            {"unique_key": "k"},
            {"unique": Unique(window=9)},
            {"sender": "ann"},
            {"batch_id": UUID(int=7)},
            {"command_id": UUID(int=7)},
            {"idempotency_key": "k"},
        ],
        ids=lambda option: next(iter(option)),
    )
    def test_a_completion_that_could_be_lost_or_counted_elsewhere_is_refused(
        self, bus: Harness, option: dict[str, Any]
    ) -> None:
        (name,) = option
        with pytest.raises(InvalidArgumentError, match=f"on_complete has no {name}"):
            create(bus, 1, on_complete=SendRequest("billing", "invoice", **option))
        with pytest.raises(InvalidArgumentError, match=f"on_complete has no {name}"):
            bus.call(
                bus.manager_class(bus.bus, BookTrip).create_batch,
                [Trip()],
                on_complete=SendRequest("billing", "invoice", **option),
            )
        assert list(bus.query()) == []

    def test_the_lifetime_of_a_completion_begins_when_it_is_sent(self, bus: Harness) -> None:
        request = SendRequest("billing", "invoice", delay=5, expires=20)
        batch_id = create(bus, 1, on_complete=request)
        bus.advance(60)
        settle(bus, None)
        close(bus, batch_id)
        (completion,) = bus.query(domain="billing")
        assert completion.expires_at is not None
        assert (completion.expires_at - completion.due_at).total_seconds() == pytest.approx(20, abs=1)
        assert (completion.due_at - completion.created_at).total_seconds() == pytest.approx(5, abs=1)

    def test_failures_show_in_the_final_status(self, bus: Harness) -> None:
        batch_id = create(bus, 2)
        settle(bus, None, BusinessRuleException("NO"))
        assert close(bus, batch_id) == 1
        assert get(bus, batch_id).status is BatchStatus.COMPLETED_WITH_FAILURES

    def test_a_worker_completes_it(self, bus: Harness) -> None:
        done = Recorder()
        registry = registry_of(ship=lambda command, context: None, done=done)
        with bus.run_worker(registry):
            batch_id = create(bus, 50, on_complete=SendRequest(DOMAIN, "done"))
            (completion,) = done.wait_for(1)
            assert completion.headers["batch_id"] == str(batch_id)
            assert counts(bus, batch_id) == (50, 0, 0, 0)

    @pytest.mark.parametrize("kind", ["def", "async def"])
    def test_the_handler_of_the_completion_gets_the_results(self, bus: Harness, kind: str) -> None:
        def ship(command: Any, context: Any) -> int:
            if command.data == 2:
                raise BusinessRuleException("NO_STOCK")
            return int(command.data) * 10

        def done(command: Any, context: Any) -> Any:
            return [[one.result, one.error_code] for one in context.batch_results()]

        async def done_async(command: Any, context: Any) -> Any:
            return [[one.result, one.error_code] for one in await context.batch_results()]

        registry = registry_of(ship=ship)
        registry.register("billing", "done", done if kind == "def" else done_async)
        with bus.run_worker(registry, [DOMAIN, "billing"]):
            members = [SendRequest(DOMAIN, "ship", n) for n in (1, 2, 3)]
            request = SendRequest("billing", "done")
            bus.call(bus.bus.create_batch, members, on_complete=request)
            eventually(lambda: bool(bus.query(domain="billing")))
            (completion,) = bus.query(domain="billing")
            assert bus.wait(completion.command_id).result == [
                [10, None],
                [None, "NO_STOCK"],
                [30, None],
            ]

    def test_only_a_completion_has_results(self, bus: Harness) -> None:
        bus.send()
        taken = bus.take(bus.worker())
        with pytest.raises(InvalidOperationError, match="on_complete"):
            bus.call(taken.context.batch_results)

    def test_an_open_batch_takes_more(self, bus: Harness) -> None:
        batch_id = create(bus, 1)
        added = bus.call(bus.bus.add_to_batch, batch_id, [SendRequest(DOMAIN, "ship")])
        assert added.batch_id == batch_id
        assert bus.get(added.command_ids[0]).batch_id == batch_id
        bus.send(DOMAIN, "ship", None, batch_id=batch_id)
        assert get(bus, batch_id).total == 3
        settle(bus, None, None)
        assert close(bus, batch_id) == 0
        settle(bus, None)
        assert close(bus, batch_id) == 1

    def test_a_complete_batch_takes_nothing_more(self, bus: Harness) -> None:
        batch_id = create(bus, 1)
        settle(bus, None)
        close(bus, batch_id)
        with pytest.raises(InvalidOperationError, match="COMPLETED"):
            bus.call(bus.bus.add_to_batch, batch_id, [SendRequest(DOMAIN, "ship")])
        assert bus.stats().ready == 0

    def test_canceling_a_batch_cancels_waiting_and_parked_and_stops_running_ones(
        self, bus: Harness
    ) -> None:
        batch_id, worker = create(bus, 5), bus.worker()
        settle(bus, None, PermanentCommandError("BAD"))
        received = bus.take(worker)
        done = bus.call(bus.bus.cancel_batch, batch_id, reason="not wanted")
        assert done == CancelBatchResult(batch_id, canceled=2, canceled_parked=1, stop_requested=1)
        assert done.total == 4
        (canceled, _, _) = bus.query(batch_id=batch_id, status="CANCELED")
        assert canceled.reason == "not wanted"
        assert get(bus, batch_id).status is BatchStatus.IN_PROGRESS
        bus.call(worker.complete, received)  # it completes nevertheless, and that stands
        assert close(bus, batch_id) == 1
        assert counts(bus, batch_id) == (2, 0, 3, 0)
        assert bus.call(bus.bus.cancel_batch, batch_id).total == 0

    def test_a_running_handler_of_a_canceled_batch_gives_way(self, bus: Harness) -> None:
        started = threading.Event()

        def ship(command: Any, context: Any) -> None:
            started.set()
            eventually(lambda: context.canceled)
            context.raise_if_canceled()

        with bus.run_worker(registry_of(ship=ship)):
            batch_id = create(bus, 1)
            assert started.wait(PATIENCE_SECONDS)
            assert bus.call(bus.bus.cancel_batch, batch_id).stop_requested == 1
            eventually(lambda: get(bus, batch_id).completed_at)
        assert counts(bus, batch_id) == (0, 0, 1, 0)

    @pytest.mark.parametrize("kind", ["def", "async def"])
    def test_a_batch_over_several_domains_completes_once_with_all_results(
        self, bus: Harness, kind: str
    ) -> None:
        payments, mail = HandlerRegistry("payments"), HandlerRegistry("mail")
        seen: list[Any] = []

        @payments.command
        def charge(order: int) -> int:
            return order * 10

        @mail.command
        def post(to: str) -> str:
            return f"posted to {to}"

        @mail.command
        def report(context: SyncHandlerContext, title: str) -> None:
            seen.append((title, [(r.domain, r.result) for r in context.batch_results()]))

        @mail.command
        async def areport(context: HandlerContext, title: str) -> None:
            seen.append((title, [(r.domain, r.result) for r in await context.batch_results()]))

        made = bus.call(
            bus.bus.create_batch,
            [charge(1), post("ada"), charge(2)],
            on_complete=(report if kind == "def" else areport)(title="all"),
        )
        batch = get(bus, made.batch_id)
        assert (batch.domains, batch.total) == (("mail", "payments"), 3)
        added = bus.call(bus.bus.add_to_batch, made.batch_id, [SendRequest(DOMAIN, "ship")])
        assert get(bus, made.batch_id).domains == ("mail", DOMAIN, "payments")
        settle(bus, None)
        # A worker of each domain settles its part; the last one completes the batch.
        with bus.run_worker(payments, "payments"):
            eventually(lambda: get(bus, made.batch_id).completed == 3)
        assert get(bus, made.batch_id).status is BatchStatus.IN_PROGRESS
        with bus.run_worker(mail, "mail"):
            eventually(lambda: seen)
        assert seen == [
            ("all", [("payments", 10), ("mail", "posted to ada"), ("payments", 20), (DOMAIN, None)])
        ]
        assert counts(bus, made.batch_id) == (4, 0, 0, 0)
        found = bus.call(bus.bus.list_batch_commands, made.batch_id, domain=DOMAIN)
        assert [record.command_id for record in found] == added.command_ids

    def test_a_batch_over_several_domains_is_listed_in_each_and_canceled_whole(
        self, bus: Harness
    ) -> None:
        requests = [SendRequest(DOMAIN, "ship"), SendRequest("mail", "post")]
        batch_id = bus.call(bus.bus.create_batch, requests).batch_id
        create(bus, 1)
        for domain, number in ((DOMAIN, 2), ("mail", 1), ("elsewhere", 0)):
            assert len(bus.call(bus.bus.list_batches, domain=domain)) == number
        assert bus.call(bus.bus.cancel_batch, batch_id).canceled == 2
        assert get(bus, batch_id).status is BatchStatus.COMPLETED_WITH_FAILURES

    def test_purging_a_domain_counts_its_commands_as_canceled(self, bus: Harness) -> None:
        requests = [*[SendRequest(DOMAIN, "ship")] * 3, SendRequest("mail", "post")]
        done = SendRequest("billing", "invoice")
        batch_id = bus.call(bus.bus.create_batch, requests, on_complete=done).batch_id
        alone = create(bus, 1, on_complete=done)
        other = bus.call(bus.bus.create_batch, [SendRequest("mail", "post")]).batch_id
        settle(bus, None, PermanentCommandError("BAD"))
        bus.call(bus.bus.purge, DOMAIN)
        batch = get(bus, batch_id)
        found = (batch.completed, batch.canceled, batch.in_troubleshooting, batch.remaining)
        assert found == (1, 2, 0, 1)
        assert bus.call(bus.bus.get_batch, alone) is None
        assert get(bus, other).remaining == 1
        bus.call(bus.bus.cancel_batch, batch_id)
        assert get(bus, batch_id).status is BatchStatus.COMPLETED_WITH_FAILURES
        assert len(bus.query(domain="billing")) == 1

    def test_purging_everything_forgets_open_batches(self, bus: Harness) -> None:
        batch_id = create(bus, 3, on_complete=SendRequest("billing", "invoice"))
        settle(bus, None, PermanentCommandError("BAD"))
        bus.call(bus.bus.purge)
        assert list(bus.call(bus.bus.list_batches)) == []
        create(bus, 1, batch_id=batch_id)
        assert counts(bus, batch_id) == (0, 0, 0, 0)

    def test_a_list_of_one_domain_finds_batches_behind_those_of_others(self, bus: Harness) -> None:
        wanted = [create(bus, 1) for _ in range(3)]
        for _ in range(5):
            bus.call(bus.bus.create_batch, [SendRequest("mail", "post")])
        found, after = [], None
        for _ in range(3):
            page = bus.call(bus.bus.list_batches, domain=DOMAIN, after=after, limit=2)
            found += [batch.batch_id for batch in page]
            after = page.next
            if after is None:
                break
        assert found == wanted[::-1]

    def test_batches_are_listed_newest_first_and_by_status(self, bus: Harness) -> None:
        first, second = create(bus, 1), create(bus, 1)
        settle(bus, None)
        close(bus, first)
        listed = bus.call(bus.bus.list_batches, domain=DOMAIN)
        assert [batch.batch_id for batch in listed] == [second, first]
        done = bus.call(bus.bus.list_batches, domain=DOMAIN, status="COMPLETED")
        assert [batch.batch_id for batch in done] == [first]
        assert not bus.call(bus.bus.list_batches, domain="elsewhere")

    def test_commands_name_their_batch(self, bus: Harness) -> None:
        batch_id = create(bus, 1)
        (record,) = bus.query(domain=DOMAIN)
        assert record.batch_id == batch_id

    def test_an_empty_batch_is_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="at least one"):
            bus.call(bus.bus.create_batch, [])

    def test_a_taken_id_is_refused(self, bus: Harness) -> None:
        batch_id = create(bus, 1)
        with pytest.raises(InvalidOperationError, match="exists already"):
            create(bus, 1, batch_id=batch_id)
        assert bus.stats().ready == 1

    def test_an_unknown_batch_is_an_error(self, bus: Harness) -> None:
        with pytest.raises(BatchNotFoundError):
            bus.send(DOMAIN, "ship", None, batch_id=uuid4())
        with pytest.raises(BatchNotFoundError):
            bus.call(bus.bus.list_batch_commands, uuid4())
        with pytest.raises(BatchNotFoundError):
            bus.call(bus.bus.cancel_batch, uuid4())
        assert bus.stats().ready == 0

    def test_custom_data_must_be_json(self, bus: Harness) -> None:
        with pytest.raises(PayloadError):
            create(bus, 1, custom_data=float("nan"))

    def test_two_last_commands_settled_at_once_complete_it(self, bus: Harness) -> None:
        batch_id = create(bus, 8)
        workers = [bus.worker() for _ in range(8)]
        taken = [bus.take(worker) for worker in workers]
        together(8, lambda n: bus.call(workers[n].complete, taken[n]))
        eventually(lambda: close(bus, batch_id) or get(bus, batch_id).completed_at)
        assert counts(bus, batch_id) == (8, 0, 0, 0)
