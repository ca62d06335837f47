"""Whatever happens to a core, in any order that it allows: it keeps its books and never spins."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from commandbus.errors import StoreUnavailable
from commandbus.store.records import SettleReport
from commandbus.worker.effects import Claim, Effect, Interrupt, Settle, Withdraw
from commandbus.worker.events import (
    ClaimFailed,
    Finished,
    LeasesGone,
    PollChanged,
    Resized,
    Settled,
    SettleFailed,
    StopRequested,
    Tick,
    Withdrawn,
    Woken,
)
from tests.unit.cores import Bench

ACTIONS = [
    "claims",
    "suspects",
    "empty",
    "no claim",
    "finish",
    "settled",
    "no settle",
    "poison",
    "wake",
    "due",
    "resize",
    "poll",
    "stop",
    "lease",
    "time",
    "tick",
]
steps = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, 6),
    ),
    max_size=60,
)
shapes = st.fixed_dictionaries(
    {
        "concurrency": st.integers(1, 4),
        "prefetch": st.sampled_from([None, 0, 3]),
        "poll_interval": st.sampled_from([0.1, 60.0]),
        "jitter": st.sampled_from([0.0, 0.01]),
        "timer_grace": st.sampled_from([0.0, 0.05]),
        "uniform": st.sampled_from([0.0, 0.5, 1.0]),
    }
)


class Driver:
    """Answers each effect exactly once, at a time that the test chooses."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.claiming: Claim | None = None
        self.settling: Settle | None = None
        self.note(bench.tell(Tick()))

    def note(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Claim):
                assert self.claiming is None
                assert effect.limit >= 1
                self.claiming = effect
            elif isinstance(effect, Settle):
                assert self.settling is None
                assert effect.batch
                self.settling = effect
        for effect in effects:
            if isinstance(effect, Withdraw):
                waiting = max(0, len(self.bench.running) - self.bench.core.concurrency)
                taken = self.bench.take_running(waiting) if waiting else []
                self.note(self.bench.tell(Withdrawn(taken)))
            elif isinstance(effect, Interrupt):
                given_up = len(self.bench.running)
                self.bench.running = []
                self.note(self.bench.tell(Finished([], given_up)))

    def do(self, action: str, number: int) -> None:
        bench, claim = self.bench, self.claiming
        match action:
            case "claims" if claim and number:
                self.claiming = None
                self.note(bench.claims(min(number, claim.limit)))
            case "suspects" if claim and number:
                self.claiming = None
                self.note(bench.claims(min(number, claim.limit), crashes=1 + number % 2))
            case "empty" if claim:
                self.claiming = None
                self.note(bench.empty(None if number > 3 else number * 0.7))
            case "no claim" if claim:
                self.claiming = None
                self.note(bench.tell(ClaimFailed(StoreUnavailable("down"))))
            case "finish" if bench.running and number:
                self.note(bench.finish(min(number, len(bench.running)), number * 2_000))
            case "settled" if self.settling:
                lost = tuple(s.seq for s in self.settling.batch) if number == 6 else ()
                self.settling = None
                self.note(bench.tell(Settled(SettleReport(lost))))
            case "no settle" | "poison" if self.settling:
                self.settling = None
                failed = SettleFailed(StoreUnavailable("down"), action == "no settle")
                self.note(bench.tell(failed))
            case "wake":
                self.note(bench.tell(Woken("notify")))
            case "due":
                self.note(bench.tell(Woken("notify", number * 0.9)))
            case "resize":
                self.note(bench.tell(Resized(number + 1)))
            case "poll":
                self.note(bench.tell(PollChanged(number + 0.1)))
            case "stop" if number > 3:
                self.note(bench.tell(StopRequested(number - 4)))
            case "lease" if bench.core.leases and number > 3:
                gone = min(bench.core.leases)
                self.note(bench.tell(LeasesGone([gone])))
            case "time":
                bench.now += number * 0.3
            case "tick":
                self.note(bench.tell(Tick()))

    def check_ticks_lead_somewhere(self) -> None:
        """Ticks at the moments that the core asks for end in an effect or in a later moment."""
        bench = self.bench
        for _ in range(3):
            deadline = bench.core.deadline()
            if deadline is None or bench.core.done(bench.now):
                return
            bench.now = max(bench.now, deadline)
            effects = bench.tell(Tick())
            self.note(effects)
            after = bench.core.deadline()
            assert effects or after is None or after > bench.now or bench.core.done(bench.now)


@settings(max_examples=400, deadline=None)
@given(shapes, steps)
def test_a_core_keeps_its_books_and_never_busy_waits(shape, steps) -> None:
    driver = Driver(Bench(**shape))
    for action, number in steps:
        driver.do(action, number)
        driver.check_ticks_lead_somewhere()
        core = driver.bench.core
        assert core.held == len(driver.bench.running)
        awaits = driver.claiming or (driver.settling and core.unrecorded)
        if not awaits and not core.stopping and core.held < core.concurrency:
            assert core.deadline() is not None, "a free slot and nothing planned"


@settings(max_examples=200, deadline=None)
@given(shapes, steps)
def test_a_stopping_core_always_comes_to_its_end(shape, steps) -> None:
    driver = Driver(Bench(**shape))
    for action, number in steps:
        driver.do(action, number)
    bench = driver.bench
    driver.note(bench.tell(StopRequested(2.0)))
    began = bench.now
    while not bench.core.done(bench.now):
        deadline = bench.core.deadline()
        assert deadline is not None
        assert deadline > bench.now
        bench.now = deadline
        driver.note(bench.tell(Tick()))
    assert bench.now <= began + 2.0 + 6.0
