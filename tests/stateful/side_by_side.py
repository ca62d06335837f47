"""Engines side by side: every op runs on all of them, and everything observable must be the same.

Sequences and lease ids are each engine's own affair, so a delivery is known here by its command, and
what is told about it is compared without those numbers. Another engine joins by one more entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from commandbus.connect import create_engine
from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.command import CommandRecord
from commandbus.domain.outcome import Outcome
from commandbus.errors import CommandBusError
from commandbus.operations.scope import Scope
from commandbus.settings import BusSettings
from commandbus.store.op import Op
from commandbus.store.records import Claimed, ClaimReply, ClaimRequest, CommandFilter, Settlement
from commandbus.store.session import Engine
from commandbus.testing.clock import FakeClock

T = TypeVar("T")
SETTINGS = BusSettings(max_attempts=2, max_pending=12)


@dataclass(frozen=True)
class Delivery:
    """A claimed command, as each engine gave it out."""

    command_id: UUID
    domain: str
    claimed: tuple[Claimed, ...]
    leases: tuple[tuple[int, ...], ...]
    """All leases of the claim, on each engine: one may cut a claim into more leases than another."""


class SideBySide:
    def __init__(self, engines: Sequence[Engine], clock: FakeClock) -> None:
        self.engines = engines
        self.clock = clock
        self.scopes = [Scope(engine.store, SETTINGS) for engine in engines]

    def run(self, build: Callable[[Scope], Op[T]], compare: Callable[[T], Any] | None = None) -> T:
        """Run an op everywhere; the first engine's answer, once all have given the same one.

        An error is an answer, too: all engines must raise the same type, and it is raised here.
        """
        answers = self.answers(build)
        shown = [_shown(answer, compare) for answer in answers]
        assert all(other == shown[0] for other in shown[1:]), "\n".join(map(str, shown))
        if isinstance(answers[0], CommandBusError):
            raise answers[0]
        return answers[0]

    def answers(self, build: Callable[[Scope], Op[Any]]) -> list[Any]:
        found: list[Any] = []
        for engine, scope in zip(self.engines, self.scopes, strict=True):
            try:
                found.append(engine.session.run(build(scope)))
            except CommandBusError as error:
                found.append(error)
        return found

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        replies: list[ClaimReply] = self.answers(lambda scope: scope.store.claim(request))
        shown = [
            # Beside commands it is a hint, which not every engine gives.
            (
                [_delivered(c) for c in reply.claimed],
                None if reply.claimed else reply.next_due_in,
                reply.rescued,
            )
            for reply in replies
        ]
        assert all(other == shown[0] for other in shown[1:]), "\n".join(map(str, shown))
        leases = tuple(tuple(sorted({c.lease_id for c in reply.claimed})) for reply in replies)
        columns = zip(*(reply.claimed for reply in replies), strict=True)
        return [Delivery(c[0].command_id, c[0].domain, c, leases) for c in columns]

    def settle(self, outcomes: Sequence[tuple[Delivery, Outcome]]) -> set[UUID]:
        """Settle everywhere; the commands whose settlements were refused."""
        refused: list[set[UUID]] = []
        for position, engine in enumerate(self.engines):
            batch = [
                Settlement(c.seq, c.lease_id, c.attempt, outcome, 1_000)
                for delivery, outcome in outcomes
                for c in [delivery.claimed[position]]
            ]
            report = engine.session.run(engine.store.settle(batch))
            refused.append(
                {d.command_id for d, _ in outcomes if d.claimed[position].seq in report.lost}
            )
        assert all(other == refused[0] for other in refused[1:]), refused
        return refused[0]

    def renew(self, delivery: Delivery, seconds: float) -> list[bool]:
        """Renew all leases of a claim everywhere; whether this delivery's was still there."""
        kept = []
        for position, engine in enumerate(self.engines):
            gone = engine.session.run(engine.store.renew(delivery.leases[position], seconds))
            kept.append(delivery.claimed[position].lease_id not in gone)
        return kept

    def report_progress(self, delivery: Delivery, percent: float) -> bool:
        kept = []
        for position, engine in enumerate(self.engines):
            c = delivery.claimed[position]
            op = engine.store.report_progress(c.seq, c.lease_id, percent, "half way")
            kept.append(engine.session.run(op))
        assert len(set(kept)) == 1, kept
        return kept[0]

    def records(self) -> list[CommandRecord]:
        wanted = CommandFilter(limit=1_000)
        return self.run(lambda scope: scope.store.query(wanted), _without_sequences)

    def trail(self, command_id: UUID) -> list[AuditEvent]:
        return self.run(lambda scope: scope.store.audit_trail(command_id, None), _without_leases)

    def compare_domains(self, domains: Sequence[str]) -> None:
        for domain in domains:
            self.run(lambda scope, domain=domain: scope.store.stats(domain))
            self.run(lambda scope, domain=domain: scope.store.count_parked(domain, None))
        self.run(lambda scope: scope.store.domains())

    def forget_everything(self) -> None:
        """Also whose turn it is among several domains, so that an example repeats exactly."""
        self.run(lambda scope: scope.store.purge(None))
        for engine in self.engines:
            transport = getattr(engine.store, "transport", None)
            (engine.store if transport is None else transport.claimer)._turn = 0


@contextmanager
def beside_the_model(url: str, clock: FakeClock) -> Iterator[list[Engine]]:
    """The memory engine, which is the model, and another."""
    engines = [create_engine(one, clock=clock) for one in ("memory://", url)]
    for engine in engines:
        engine.open()
    try:
        yield engines
    finally:
        for engine in engines:
            engine.close()


def _shown(answer: Any, compare: Callable[[Any], Any] | None) -> Any:
    if isinstance(answer, CommandBusError):
        return type(answer), str(answer)
    return answer if compare is None else compare(answer)


def _delivered(claimed: Claimed) -> Claimed:
    return msgspec.structs.replace(claimed, seq=0, lease_id=0, keyed=False)


def _without_sequences(records: list[CommandRecord]) -> list[CommandRecord]:
    return [msgspec.structs.replace(record, sequence=0) for record in records]


def _without_leases(trail: list[AuditEvent]) -> list[Any]:
    return [
        (event.event_type, event.timestamp, {k: v for k, v in event.details.items() if k != "lease_id"})
        if event.event_type is AuditEventType.WORKER_LOST
        else event
        for event in trail
    ]
