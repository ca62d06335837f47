"""A command whose workers died runs with fewer others, and alone on its last chance."""

from uuid import uuid4

from commandbus.domain.outcome import Released, Succeeded
from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, ClaimReply, Settlement, SettleReport
from commandbus.worker.core import WorkerCore
from commandbus.worker.effects import Claim, Effect, Settle, Start
from commandbus.worker.events import Claims, Finished, Settled, Tick
from commandbus.worker.suspects import ALONE_SECONDS, RELEASES_MAX, WAIT_SECONDS


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


def test_a_suspect_waits_until_what_ran_before_it_is_on_record() -> None:
    """An outcome that is not durable yet would be lost with the process, as a crash of its own."""
    it = Watched()
    it.find(claimed(1, crashes=0), claimed(2, crashes=2), now=0.1)
    assert it.started == [1]
    it.finish(1, 0.2)
    assert [one.seq for one in it.settling] == [1]
    assert it.started == [1], "the outcome of 1 is not durable yet"
    it.settled(0.3)
    assert it.started == [1, 2]
    assert it.claims == [2], "nothing is claimed beside it"
    it.finish(2, 0.4)
    assert it.claims == [2, 1], "the next may be a suspect, too"


def test_a_suspect_waits_until_other_suspects_have_gone_back() -> None:
    it = Watched()
    it.find(claimed(1, crashes=2), claimed(2, crashes=2), now=0.1)
    assert list(it.back) == [2]
    assert it.back[2] > 0, "at the head of the queue it would be claimed again before all others"
    assert it.started == [], "2 is still under the lease of this process"
    it.settled(0.2)
    assert it.started == [1]


def test_a_suspect_that_waits_too_long_goes_back_and_others_run() -> None:
    """A handler that takes minutes must not idle the other slots of its worker."""
    it = Watched()
    it.find(claimed(1, crashes=0), claimed(2, crashes=2), now=0.1)
    deadline = it.core.deadline()
    assert deadline == 0.1 + WAIT_SECONDS
    it.tell(Tick(), deadline)
    assert list(it.back) == [2]
    assert it.claims == [2, 1]
    it.settled(1.2)
    # As long as that one runs, the next suspect is not even tried.
    it.find(claimed(3, crashes=2), now=1.3)
    assert list(it.back) == [2, 3]
    assert it.started == [1]


def test_a_suspect_that_runs_for_long_keeps_nobody_out_any_more() -> None:
    it = Watched()
    it.find(claimed(1, crashes=2), now=0.1)
    assert (it.started, it.claims) == ([1], [2])
    assert it.core.deadline() == 0.1 + ALONE_SECONDS
    it.tell(Tick(), 0.1 + ALONE_SECONDS)
    assert it.claims == [2, 1]


def test_a_suspect_that_was_given_back_often_runs_among_others() -> None:
    it = Watched()
    it.find(claimed(1, crashes=0), claimed(2, crashes=2, releases=RELEASES_MAX), now=0.1)
    assert it.started == [1, 2]
