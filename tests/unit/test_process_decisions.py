"""The decision core of processes without time, store or threads: random histories, the same laws."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from commandbus import ReplyOutcome, SendRequest
from commandbus.domain.process import decisions
from commandbus.domain.process.decisions import Decision
from commandbus.domain.process.values import (
    ENDED,
    ProcessEventType,
    ProcessStatus,
    Progress,
    StepKind,
    StepRun,
    StepStatus,
)
from commandbus.domain.process.work import DecisionError
from commandbus.domain.unique import Unique
from commandbus.errors import ConfigurationError
from commandbus.processes import END, Process, step
from commandbus.records import Reply
from commandbus.testing.sagas import Approved, BookTrip, Choosy, Parallel, Timed, Tour, Trip

DECLARATIONS = [BookTrip, Choosy, Parallel, Timed, Approved, Tour]


class World:
    """One process, what it has sent, and a fake clock; every event goes through JSON, as in a store."""

    def __init__(self, declaration: type[Process[Any]], seed: int) -> None:
        self.random = random.Random(seed)
        self.declaration = declaration
        self.process_id = uuid4()
        self.now = 0
        self.open: dict[UUID, StepRun] = {}
        self.sent: list[str] = []
        self.kinds: list[ProcessEventType] = []
        self.status, self.state, self.error = ProcessStatus.RUNNING, Trip(), None
        self.progress = Progress()
        self.tell("start")

    def tell(self, event: str, *arguments: Any) -> None:
        progress = msgspec.json.decode(msgspec.json.encode(self.progress), type=Progress)
        state = msgspec.json.decode(msgspec.json.encode(self.state), type=Trip)
        was = self.status
        decision = Decision(
            self.declaration, self.process_id, was, state, progress, self.error, self.now
        )
        getattr(decision, event)(*arguments)
        self.status, self.state, self.progress = decision.status, decision.state, decision.progress
        self.error = decision.error
        self.kinds += [note.kind for note in decision.notes]
        if was in ENDED:
            assert self.status is was, "an ended process changed"
            assert not decision.sends, "an ended process sent something"
            assert not decision.starts, "an ended process started something"
        for run, request in decision.sends:
            assert (request.command_id, request.reply_to) == (run.id, self.declaration.reply_to)
            assert run.id not in self.open, "a command was sent twice"
            self.open[run.id] = run
            self.sent.append(run.name)
        for run, _ in decision.starts:
            self.open[run.id] = run
        self.check()

    def check(self) -> None:
        pending = list(self.progress.pending())
        undoing = [run for run in pending if run.undoes is not None]
        assert len(undoing) <= 1, "compensations are one at a time"
        if undoing:
            assert undoing == pending, "undone while something runs forward"
        if self.status in ENDED:
            assert not pending, "ended with something pending"
        elif not pending:
            assert self.progress.stuck is not None, "nothing can ever happen to it again"
        assert {run.kind for run in pending} <= set(StepKind)

    def anything(self) -> None:
        """Something happens, as rarely or often as it likes."""
        open_runs = list(self.open.values())
        choice = self.random.random()
        if choice < 0.7 and open_runs:
            self.reply(self.random.choice(open_runs))
        elif choice < 0.78:
            self.reply_to(self.random.choice([*self.open, uuid4()]))
        elif choice < 0.86:
            self.now += self.random.choice([1, 5_000_000, 70_000_000])
            self.tell("time_passed")
        elif choice < 0.9:
            self.tell("signaled", self.random.choice(["approved", "noise"]), {"by": "ann"})
        elif choice < 0.92 and self.status not in ENDED:
            self.tell("cancel", "no use", "ann")
        elif self.progress.stuck is not None:
            self.tell(*self.random.choice([("retry", "ann"), ("skip", "by hand", "ann")]))

    def reply(self, run: StepRun) -> None:
        outcome = self.random.choices(list(ReplyOutcome), [8, 2, 1])[0]
        self.reply_to(run.id, outcome)
        del self.open[run.id]

    def reply_to(self, command_id: UUID, outcome: ReplyOutcome = ReplyOutcome.SUCCESS) -> None:
        self.tell("replied", Reply(command_id, "travel", "x", self.process_id, outcome, "Grand"))


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda d: d.process_type)
def test_every_history_keeps_the_laws_and_comes_to_an_end(declaration: type[Process[Any]]) -> None:
    ends: set[ProcessStatus] = set()
    for seed in range(400):
        world = World(declaration, seed)
        for _ in range(60):
            world.anything()
        # From here on nothing goes wrong any more: it must come to an end by itself.
        for _ in range(60):
            if world.status in ENDED:
                break
            if world.progress.stuck is not None:
                world.tell("retry", "ann")
            for run in list(world.open.values()):
                world.reply_to(run.id)
                del world.open[run.id]
            world.tell("signaled", "approved", {"by": "ann"})
        assert world.status in ENDED, f"seed {seed}: {world.status}, {world.progress}"
        ends.add(world.status)
        assert_undone_in_reverse(world, seed)
    assert ProcessStatus.COMPLETED in ends
    assert ends & {ProcessStatus.COMPENSATED, ProcessStatus.FAILED}


def assert_undone_in_reverse(world: World, seed: int) -> None:
    """What was done is undone exactly when the process did not complete, newest first."""
    runs = world.progress.runs
    done = [run for run in runs if run.undoes is None and run.rank]
    undone = [run.undoes for run in runs if run.undoes is not None and run.status != StepStatus.FAILED]
    if world.status is ProcessStatus.COMPLETED:
        assert undone == [], f"seed {seed}: undone though completed"
        return
    expected = [
        run.number
        for run in sorted(done, key=lambda run: -run.rank)
        if world.declaration.steps[run.name].undo is not None
    ]
    assert undone == expected, f"seed {seed}: {world.progress}"


def test_a_decision_is_the_same_however_often_it_is_made() -> None:
    decisions = []
    process_id = uuid4()
    for _ in range(2):
        decision = Decision(
            BookTrip, process_id, ProcessStatus.RUNNING, Trip(), Progress(), None, elapsed=0
        )
        decision.start()
        decisions.append([request.command_id for _, request in decision.sends])
    assert decisions[0] == decisions[1]


class Loop(Process[dict[str, Any]]):
    @step(then="again")
    def again(self, state: dict[str, Any]) -> None:
        state["begun"] += 1


def test_steps_that_do_nothing_for_ever_are_noticed_after_a_hundred() -> None:
    state = {"begun": 0}
    decision = Decision(Loop, uuid4(), ProcessStatus.RUNNING, state, Progress(), None, elapsed=0)
    with pytest.raises(DecisionError, match="ENDLESS"):
        decision.start()
    assert state["begun"] == 100


class Astray(Process[dict[str, Any]]):
    @step(then=END)
    def only(self, state: dict[str, Any]) -> Any:
        return state.get("action")

    @only.reply
    def lost(self, state: dict[str, Any], reply: Any) -> Any:
        return state["next"]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"action": "text"}, "NO_ACTION"),
        ({"action": SendRequest("a", "b", batch_id=uuid4())}, "BATCH_ID"),
        ({"action": SendRequest("a", "b", unique_key="k")}, "UNIQUE_KEY"),
        ({"action": SendRequest("a", "b", unique=Unique(window=9))}, "UNIQUE"),
        ({"action": SendRequest("a", "b", sender="ann")}, "SENDER"),
        ({"action": SendRequest("a", "b"), "next": "nowhere"}, "UNDECLARED_STEP"),
        ({"action": SendRequest("a", "b"), "next": 7}, "NO_STEP"),
        ({"action": SendRequest("a", "b")}, "KeyError"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(state: dict[str, Any], code: str) -> None:
    process_id = uuid4()
    decision = Decision(Astray, process_id, ProcessStatus.RUNNING, state, Progress(), None, 0)
    with pytest.raises(DecisionError, match=code):  # noqa: PT012 - the first or the second refuses
        decision.start()
        (run,) = decision.progress.runs
        decision.replied(Reply(run.id, "a", "b", process_id, ReplyOutcome.SUCCESS))


def declare(**members: Any) -> Any:
    """A declaration made when a test asks for it."""
    return type("Made", (Process,), members)


def build(self: Any, state: Any) -> None:
    """What a step of these declarations does: nothing."""


def made(name: str, **options: Any) -> Any:
    method = type(build)(build.__code__, build.__globals__, name)
    return step(**options)(method)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a": made("a", then="nowhere")}, "no step of it"),
        ({"a": made("a", then=["b", END]), "b": made("b")}, "no method chooses"),
        ({"a": made("a", then="b", fork=["b"]), "b": made("b")}, "both then= and fork="),
        ({"a": made("a", fork=["b", "c"]), "b": made("b"), "c": made("c")}, "run at once"),
        ({"timeout": made("timeout")}, "something else of that name"),
        ({"a": made("a"), "process_type": "no name"}, "not a valid name"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declare(**members)


def test_a_subclass_may_add_steps() -> None:
    class Longer(BookTrip):
        @step
        def thank(self, state: Trip) -> SendRequest:
            return SendRequest("travel", "thank")

    assert Longer.steps["pay"].then == ("thank",)
    assert BookTrip.steps["pay"].then == ()
    assert (Longer.process_type, Longer.state_type) == ("longer", Trip)


def test_a_process_without_steps_is_no_process() -> None:
    from commandbus.sync import SyncCommandBus, SyncProcessManager

    with pytest.raises(ConfigurationError, match="at least one @step"):
        SyncProcessManager(SyncCommandBus("memory://"), declare())


class Poll(Process[Trip]):
    """Asks again and again, until it is told to stop."""

    @step
    def begin(self, state: Trip) -> SendRequest:
        return SendRequest("travel", "begin")

    @begin.compensation
    def undo(self, state: Trip) -> SendRequest:
        return SendRequest("travel", "undo")

    @step(then=["ask", END])
    def ask(self, state: Trip) -> SendRequest:
        return SendRequest("travel", "ask")

    @ask.reply
    def answered(self, state: Trip, reply: Reply) -> Any:
        state.paid += 1
        return END if reply.result == "enough" else "ask"


def poll(turns: int) -> World:
    """A process after so many turns of its loop, with the next one open."""
    world = World(Poll, 0)
    for _ in range(turns + 1):
        (run,) = world.progress.pending()
        world.open.pop(run.id)
        world.tell("replied", reply_to(world, run, ReplyOutcome.SUCCESS))
    return world


def reply_to(world: World, run: StepRun, outcome: ReplyOutcome, result: Any = None) -> Reply:
    return Reply(run.id, run.target, run.command_type, world.process_id, outcome, result)


def test_a_process_of_ten_thousand_turns_does_not_grow() -> None:
    few, many = poll(200), poll(10_000)
    sizes = [len(msgspec.json.encode(world.progress)) for world in (few, many)]
    assert sizes[1] <= sizes[0] * 1.1
    assert len(many.progress.runs) == 100
    assert many.state.paid == 10_000
    assert [run.number for run in many.progress.runs][-2:] == [10_001, 10_002]


def test_what_may_have_to_be_undone_is_never_forgotten() -> None:
    world = poll(500)
    (run,) = world.progress.pending()
    world.tell("replied", reply_to(world, run, ReplyOutcome.FAILED))
    (undoing,) = world.progress.pending()
    assert undoing.name == "undo"
    world.tell("replied", reply_to(world, undoing, ReplyOutcome.SUCCESS))
    assert world.status is ProcessStatus.COMPENSATED


class Hoard(Process[Trip]):
    """Loops over a step that has to be undone each time."""

    @step(then="take")
    def take(self, state: Trip) -> SendRequest:
        return SendRequest("travel", "take")

    @take.compensation
    def give_back(self, state: Trip) -> SendRequest:
        return SendRequest("travel", "give_back")


def test_a_loop_of_what_has_to_be_undone_ends_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "RUNS_MAX", 5)
    world = World(Hoard, 0)
    for _ in range(4):
        (run,) = world.progress.pending()
        world.tell("replied", reply_to(world, run, ReplyOutcome.SUCCESS))
    (run,) = world.progress.pending()
    with pytest.raises(DecisionError, match="TOO_MANY_STEPS"):
        world.tell("replied", reply_to(world, run, ReplyOutcome.SUCCESS))


def test_a_late_reply_to_a_forgotten_run_is_ignored() -> None:
    world = World(Poll, 0)
    (first,) = world.progress.pending()
    world = poll(300)
    before = list(world.progress.runs)
    world.tell("replied", reply_to(world, first, ReplyOutcome.SUCCESS))
    assert world.kinds[-1] is ProcessEventType.REPLY_IGNORED
    assert world.progress.runs == before


class Idle(Process[Trip]):
    """Its steps have nothing to do."""

    @step(then="second")
    def first(self, state: Trip) -> None:
        return None

    @step
    def second(self, state: Trip) -> None:
        return None


def test_a_process_whose_steps_have_nothing_to_do_ends_at_its_start() -> None:
    world = World(Idle, 0)
    assert (world.status, world.sent) == (ProcessStatus.COMPLETED, [])
    assert world.kinds == [
        ProcessEventType.STARTED,
        ProcessEventType.STEP_SKIPPED,
        ProcessEventType.STEP_SKIPPED,
        ProcessEventType.COMPLETED,
    ]
