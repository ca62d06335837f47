"""A bench for the worker core: a clock to turn by hand, and commands that cost nothing."""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import UUID

from msgspec.structs import replace

from commandbus.domain.outcome import Succeeded
from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, ClaimReply, Settlement
from commandbus.worker.core import WorkerCore
from commandbus.worker.effects import Claim, Effect, Start
from commandbus.worker.events import ClaimAnswered, Event, Finished, Tick
from commandbus.worker.pace import MEASURED_MIN
from tests.support.core_invariants import check_core

E = TypeVar("E")


class Bench:
    """Claims are shown without their limit of suspects, which has tests of its own."""

    def __init__(
        self,
        *,
        uniform: float = 0.0,
        measured: int = MEASURED_MIN,
        until_idle: float | None = None,
        **settings: Any,
    ) -> None:
        self.now = 1_000.0
        self.core = WorkerCore(
            WorkerSettings(**settings), uniform=lambda: uniform, until_idle=until_idle
        )
        self.core.prefetch.handler_time.runs = measured
        self.running: list[Claimed] = []
        self._limit = 0
        self._seq = 0
        self._lease = 0

    def tell(self, event: Event) -> list[Effect]:
        effects = [
            replace(effect, suspects=None) if isinstance(effect, Claim) else effect
            for effect in self.core.handle(event, self.now)
        ]
        check_core(self.core)
        for start in self.kinds(effects, Start):
            self.running += start.claimed
        return effects

    def begun(self, limit: int | None = None) -> Bench:
        """After the first claim went out; a tenth of a second passes, so that no sweep is due."""
        (claim,) = self.tell(Tick())
        assert limit in (None, claim.limit)  # type: ignore[union-attr]
        return self

    def claims(
        self, count: int, crashes: int = 0, priority: int = 5, *, keyed: bool = False, chain: int = 0
    ) -> list[Effect]:
        """The claim in flight finds so many commands, under one lease; behind each so many of its
        group."""
        self._lease += 1
        first = [self._seq + 1 + n * (chain + 1) for n in range(count)]
        found = [
            claimed_of(leader + place, self._lease, crashes, priority, keyed, leader if chain else 0)
            for leader in first
            for place in range(chain + 1)
        ]
        self._seq += len(found)
        return self.tell(ClaimAnswered(ClaimReply(found), max(count, self.core._room())))

    def empty(self, next_due_in: float | None = None) -> list[Effect]:
        """The claim in flight finds nothing."""
        return self.tell(ClaimAnswered(ClaimReply([], next_due_in), 4))

    def finish(self, count: int, ran: int = 1_000_000) -> list[Effect]:
        """So many handlers end."""
        ended, self.running = self.running[:count], self.running[count:]
        return self.tell(
            Finished([Settlement(c.seq, c.lease_id, c.attempt, Succeeded(), ran) for c in ended])
        )

    def take_running(self, count: int) -> list[Claimed]:
        """The last commands, which no slot has begun."""
        taken, self.running = self.running[-count:], self.running[:-count]
        return taken

    @staticmethod
    def kinds(effects: list[Effect], kind: type[E]) -> list[E]:
        return [effect for effect in effects if isinstance(effect, kind)]


def claimed_of(
    seq: int,
    lease_id: int = 1,
    crashes: int = 0,
    priority: int = 5,
    keyed: bool = False,
    chain: int = 0,
) -> Claimed:
    command_id = UUID(int=seq)
    return Claimed(
        seq=seq,
        lease_id=lease_id,
        domain="d",
        command_type="T",
        command_id=command_id,
        data="null",
        correlation_id=command_id,
        causation_id=None,
        reply_to=None,
        priority=priority,
        max_attempts=None,
        created_at=0,
        tags=None,
        headers=None,
        attempt=1 + crashes,
        crashes=crashes,
        releases=0,
        keyed=keyed,
        chain=chain,
    )
