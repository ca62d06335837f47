"""A command whose workers died runs beside fewer others, and on its last chance beside fresh ones."""

from uuid import uuid4

from commandbus.domain.outcome import Released, Succeeded
from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, ClaimReply, Settlement, SettleReport
from commandbus.worker.core import WorkerCore
from commandbus.worker.effects import Claim, Effect, Settle, Start
from commandbus.worker.events import Claims, Finished, Settled, StopRequested, Tick, Withdrawn
from commandbus.worker.suspects import RELEASES_MAX


def claimed(seq: int, crashes: int, releases: int = 0) -> Claimed:
    values = dict.fromkeys(Claimed.__struct_fields__)
    values |= {"seq": seq, "lease_id": 1, "domain": "d", "command_type": "t", "command_id": uuid4()}
    values |= {"attempt": crashes + 1, "crashes": crashes, "releases": releases, "priority": 5}
    return Claimed(**values)


class Watched:
    """A core, the commands it starts, and those it gives back with the delay."""

    def __init__(self, concurrency: int = 2, prefetch: int = 0) -> None:
        self.core = WorkerCore(WorkerSettings(concurrency=concurrency, prefetch=prefetch))
        self.started: list[int] = []
        self.back: dict[int, float] = {}
        self.settling: list[Settlement] = []
        self.claims: list[int] = []
        self.tell(Tick(), 0.0)

    def tell(self, event: object, now: float) -> None:
        effects: list[Effect] = self.core.handle(event, now)  # type: ignore[arg-type]
        self.core.check()
        for effect in effects:
            match effect:
                case Start(batch):
                    self.started += [one.seq for one in batch]
                case Settle(batch):
                    self.settling = list(batch)
                    for one in batch:
                        if isinstance(one.outcome, Released):
                            self.back[one.seq] = one.outcome.delay
                case Claim(limit=limit):
                    self.claims.append(limit)
                case _:
                    continue

    def find(self, *found: Claimed, now: float) -> None:
        self.tell(Claims(ClaimReply(list(found)), 2), now)

    def finish(self, seq: int, now: float) -> None:
        self.tell(Finished([Settlement(seq, 1, 1, Succeeded(None))]), now)

    def settled(self, now: float) -> None:
        self.tell(Settled(SettleReport()), now)


def test_after_one_crash_a_command_runs_among_others() -> None:
    it = Watched()
    it.find(claimed(1, crashes=0), claimed(2, crashes=1), now=0.1)
    assert it.started == [1, 2]


def test_after_a_crash_no_more_start_together_than_there_are_slots() -> None:
    it = Watched(concurrency=2, prefetch=3)
    assert it.claims == [5]
    it.find(*(claimed(seq, crashes=1) for seq in range(1, 6)), now=0.1)
    assert it.started == [1, 2]
    assert sorted(it.back) == [3, 4, 5]
    assert len(set(it.back.values())) == 3, "they do not return together"
    it.settled(0.2)
    it.finish(1, 0.3)
    assert it.claims == [5, 1], "nothing is claimed ahead"


def test_on_its_last_chance_a_command_runs_beside_fresh_ones() -> None:
    """If it kills its process, they count their first crash, and nobody is parked with it."""
    it = Watched()
    it.find(claimed(1, crashes=0), claimed(2, crashes=2), now=0.1)
    assert sorted(it.started) == [1, 2]
    assert it.back == {}


def test_suspects_are_kept_away_from_one_on_its_last_chance() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, crashes=2), now=0.1)
    it.find(claimed(2, crashes=1), claimed(3, crashes=2), claimed(4, crashes=0), now=0.2)
    assert it.started == [1, 4]
    assert sorted(it.back) == [2, 3]
    assert it.back[2] > 0, "at the head of the queue it would be claimed again before all others"


def test_one_on_its_last_chance_is_kept_away_from_other_suspects() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, crashes=1), now=0.1)
    it.find(claimed(2, crashes=2), now=0.2)
    assert it.started == [1]
    assert list(it.back) == [2]


def test_one_on_its_last_chance_begins_when_the_others_have_left() -> None:
    """Until their release is durable they are under a lease of this process, and would be parked."""
    it = Watched()
    it.find(claimed(1, crashes=2), claimed(2, crashes=2), now=0.1)
    assert list(it.back) == [2]
    assert it.started == []
    it.settled(0.2)
    assert it.started == [1]


def test_the_next_suspect_runs_when_the_outcome_of_the_last_is_durable() -> None:
    it = Watched(concurrency=4)
    it.find(claimed(1, crashes=2), now=0.1)
    it.finish(1, 0.2)
    it.find(claimed(2, crashes=2), now=0.3)
    assert it.started == [1], "the outcome of 1 is on its way"
    it.settled(0.4)
    it.settled(0.5)
    it.find(claimed(3, crashes=2), now=0.6)
    assert it.started == [1, 3]


def test_a_suspect_that_was_given_back_often_runs_among_others() -> None:
    it = Watched()
    it.find(claimed(1, crashes=1), claimed(2, crashes=2, releases=RELEASES_MAX), now=0.1)
    assert it.started == [1, 2]


def test_a_stopping_worker_gives_back_the_suspect_that_waits() -> None:
    it = Watched()
    it.find(claimed(1, crashes=2), claimed(2, crashes=2), now=0.1)
    it.tell(StopRequested(5.0), 0.2)
    it.tell(Withdrawn([]), 0.25)
    it.find(now=0.25)
    it.settled(0.3)
    assert sorted(it.back) == [1, 2]
    it.settled(0.4)
    assert it.started == []
    assert it.core.done(0.4)
