"""The rules that any engine obeys, as a state machine; hypothesis looks for an order against them."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import FINAL, CommandStatus
from commandbus.domain.outcome import Outcome, Released, Succeeded, decide_failure
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import (
    BusinessRuleException,
    DuplicateCommandError,
    InvalidOperationError,
    PermanentCommandError,
    QueueFull,
    Snooze,
    TransientCommandError,
)
from commandbus.operations import canceling, queues, sending, troubleshooting
from commandbus.store.records import ClaimRequest
from tests.simulation.oracle import fold
from tests.stateful.side_by_side import SETTINGS, Delivery, SideBySide

DOMAINS = ("orders", "billing")
LEASE = 10.0
POLICY = RetryPolicy(backoff_schedule=[0.0, 5.0])

domains = st.sampled_from(DOMAINS)
delays = st.sampled_from([None, None, 0.0, 2.5, 20.0])
errors = st.sampled_from(
    [
        TransientCommandError("DOWN", "later", {"at": [1, 2.5, None]}),
        ValueError("broken \N{SNOWMAN} text"),
        PermanentCommandError("WRONG", "never", {"field": "x"}),
        BusinessRuleException("NO", "not allowed"),
        Snooze(3.0, "not yet"),
    ]
)


class Engines(RuleBasedStateMachine):
    """Subclasses say which engines; the first one is the model."""

    both: ClassVar[SideBySide]

    sent = Bundle("sent")
    running = Bundle("running")
    past = Bundle("past")
    """Deliveries that were settled, or whose lease may be gone: settling them again is stale."""

    @initialize(target=sent)
    def begin(self):
        """A few commands are there from the start, so that there is something to do."""
        self.both.forget_everything()
        self.keys: dict[tuple[str, str], UUID] = {}
        self.touched: set[UUID] = set()
        self.numbers = 0
        first = [SendRequest(domain, "Work", command_id=self._new_id()) for domain in DOMAINS * 2]
        keyed = SendRequest(DOMAINS[0], "Work", command_id=self._new_id(), unique_key="k")
        self.both.run(lambda scope: sending.send_many(scope, [*first, keyed]))
        return multiple(*((request.domain, request.command_id) for request in [*first, keyed]))

    def _new_id(self) -> UUID:
        self.numbers += 1
        return UUID(int=self.numbers)

    # Senders.

    @rule(
        target=sent,
        domain=domains,
        priority=st.sampled_from(["high", "normal", "low", 7]),
        delay=delays,
        key=st.sampled_from([None, None, "k"]),
        max_attempts=st.sampled_from([None, 1, 3]),
        expires_in=st.sampled_from([None, None, None, 8.0]),
        data=st.sampled_from([None, {"n": 1}, ["\N{SNOWMAN}", 1.5, True], "text"]),
    )
    def send(self, domain, priority, delay, key, max_attempts, expires_in, data):
        command_id = self._new_id()
        expires_at = None if expires_in is None else self.both.clock.now + timedelta(seconds=expires_in)
        try:
            result = self.both.run(
                lambda scope: sending.send(
                    scope,
                    domain,
                    "Work",
                    data,
                    command_id=command_id,
                    priority=priority,
                    delay=delay,
                    unique_key=key,
                    max_attempts=max_attempts,
                    expires_at=expires_at,
                    tags=("a", "b") if key else (),
                    headers={"trace": "x"} if key else None,
                )
            )
        except QueueFull:
            return multiple()
        self.touched.add(result.command_id)
        return multiple() if result.duplicate else (domain, command_id)

    @rule(target=sent, count=st.integers(1, 3), domain=domains, delay=delays)
    def send_many(self, count, domain, delay):
        ids = [self._new_id() for _ in range(count)]
        requests = [
            SendRequest(domain, "Work", n, command_id=i, delay=delay) for n, i in enumerate(ids)
        ]
        try:
            self.both.run(lambda scope: sending.send_many(scope, requests))
        except QueueFull:
            return multiple()
        return multiple(*((domain, command_id) for command_id in ids))

    @rule(command=sent, key=st.sampled_from([None, "k"]))
    def send_again(self, command, key):
        domain, command_id = command

        def op(scope):
            return sending.send(scope, domain, "Work", command_id=command_id, unique_key=key)

        with suppress(DuplicateCommandError, QueueFull):
            assert self.both.run(op).duplicate, "the same id was accepted twice"

    @rule(command=sent)
    def cancel(self, command):
        domain, command_id = command
        self.touched.add(command_id)
        with suppress(InvalidOperationError):
            self.both.run(
                lambda scope: canceling.cancel(
                    scope, command_id, domain=domain, reason="changed my mind"
                )
            )

    # Workers.

    @rule(
        target=running,
        worker=st.sampled_from(["w1", "w2"]),
        wanted=st.sampled_from([DOMAINS, ("orders",), ("billing",)]),
        limit=st.sampled_from([3, 1, 2, 5]),
    )
    def claim(self, worker, wanted, limit):
        delivered = self.both.claim(ClaimRequest(wanted, limit, worker, LEASE))
        ranks = {}
        for delivery in delivered:
            claimed = delivery.claimed[0]
            rank = (claimed.priority, claimed.seq)
            assert rank > ranks.get(claimed.domain, (-1, -1)), "out of order"
            ranks[claimed.domain] = rank
            self.touched.add(delivery.command_id)
        return multiple(*delivered)

    @rule(target=running, worker=st.sampled_from(["w1", "w2"]), seconds=st.sampled_from([LEASE, 5.0]))
    def claim_later(self, worker, seconds):
        """Others may have died meanwhile: what they held comes back with this claim."""
        self.both.clock.advance(seconds)
        return self.claim(worker, DOMAINS, 2)

    def _settle(self, delivery: Delivery, outcome: Outcome) -> bool:
        self.touched.add(delivery.command_id)
        return delivery.command_id not in self.both.settle([(delivery, outcome)])

    @rule(target=past, delivery=consumes(running))
    def complete(self, delivery):
        self._settle(delivery, Succeeded('{"ok":true}'))
        return delivery

    @rule(target=past, delivery=consumes(running), error=errors)
    def fail(self, delivery, error):
        claimed = delivery.claimed[0]
        outcome = decide_failure(
            error,
            attempt=claimed.attempt,
            crashes=claimed.crashes,
            max_attempts=claimed.max_attempts or SETTINGS.max_attempts,
            policy=POLICY,
        )
        self._settle(delivery, outcome)
        return delivery

    @rule(target=past, delivery=consumes(running), delay=st.sampled_from([0.0, 1.0]))
    def release(self, delivery, delay):
        self._settle(delivery, Released("stopping", delay))
        return delivery

    @rule(delivery=running)
    def renew(self, delivery):
        assert len(set(self.both.renew(delivery, LEASE))) == 1, "valid here and gone there"

    @rule(delivery=running, percent=st.sampled_from([0.0, 50.0]))
    def report_progress(self, delivery, percent):
        self.both.report_progress(delivery, percent)
        self.touched.add(delivery.command_id)

    @rule(delivery=past, late=st.sampled_from([Succeeded("1"), Released("late", 0.0)]))
    def settle_too_late(self, delivery, late):
        before = self.both.records()
        self._settle(delivery, late)
        assert self.both.records() == before, "a stale settle changed something"

    @rule(delivery=past)
    def renew_too_late(self, delivery):
        self.both.renew(delivery, LEASE)

    # Time, operators and pauses.

    @rule(seconds=st.sampled_from([0.5, 2.5, 5.0, LEASE - 0.001, LEASE, 3 * LEASE]))
    def advance(self, seconds):
        self.both.clock.advance(seconds)

    @rule(domain=domains, paused=st.sampled_from([False, True, False]))
    def pause_or_resume(self, domain, paused):
        if paused:
            self.both.run(lambda scope: queues.pause(scope, domain, "maintenance"))
        else:
            self.both.run(lambda scope: queues.resume(scope, domain))

    @rule(command=sent, kind=st.sampled_from(["retry", "edit", "cancel", "complete"]))
    def operate(self, command, kind):
        domain, command_id = command
        self.touched.add(command_id)

        def op(scope):
            match kind:
                case "retry":
                    return troubleshooting.operator_retry(scope, command_id, domain=domain)
                case "edit":
                    return troubleshooting.operator_retry(
                        scope, command_id, domain=domain, data={"n": 2}
                    )
                case "cancel":
                    return troubleshooting.operator_cancel(
                        scope, command_id, domain=domain, reason="no use"
                    )
                case _:
                    return troubleshooting.operator_complete(
                        scope, command_id, {"by": "hand"}, domain=domain
                    )

        with suppress(InvalidOperationError):
            self.both.run(op)

    # What must be true after every step.

    @invariant()
    def all_engines_show_the_same(self):
        records = self.both.records()
        held = [(r.domain, r.unique_key) for r in records if r.unique_key and r.status not in FINAL]
        assert len(held) == len(set(held)), "a unique key is held twice"
        for record in records:
            if record.command_id in self.touched:
                self._check_trail(record)
        self.touched = set()
        self.both.compare_domains(DOMAINS)

    def _check_trail(self, record) -> None:
        status, attempts, crashes, _ = fold(self.both.trail(record.command_id))
        assert (status, attempts, crashes) == (record.status, record.attempts, record.crashes)

    def teardown(self) -> None:
        for record in self.both.records():
            self._check_trail(record)
            assert (record.finished_at is None) == (
                record.status in (CommandStatus.PENDING, CommandStatus.IN_PROGRESS)
            )
