"""A command whose worker died before runs alone: nothing else may be lost with its process."""

from uuid import uuid4

from commandbus.domain.outcome import Succeeded
from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, ClaimReply, Settlement, SettleReport
from commandbus.worker.core import WorkerCore
from commandbus.worker.effects import Claim, Settle, Start
from commandbus.worker.events import Claims, Finished, Settled, Tick


def claimed(seq: int, crashes: int) -> Claimed:
    values = dict.fromkeys(Claimed.__struct_fields__)
    values |= {"seq": seq, "lease_id": 1, "domain": "d", "command_type": "t", "command_id": uuid4()}
    values |= {"attempt": crashes + 1, "crashes": crashes, "releases": 0, "priority": 5}
    return Claimed(**values)


def started(effects: list[object]) -> list[int]:
    return [c.seq for effect in effects if isinstance(effect, Start) for c in effect.claimed]


def test_a_suspect_waits_until_what_ran_before_it_is_on_record() -> None:
    """An outcome that is not durable yet would be lost with the process, as a crash of its own."""
    core = WorkerCore(WorkerSettings(concurrency=2))
    assert any(isinstance(effect, Claim) for effect in core.handle(Tick(), 0.0))
    reply = ClaimReply([claimed(1, crashes=0), claimed(2, crashes=1)])
    assert started(core.handle(Claims(reply, 2), 0.1)) == [1]

    done = Settlement(1, 1, 1, Succeeded(None))
    effects = core.handle(Finished([done]), 0.2)
    assert any(isinstance(effect, Settle) for effect in effects)
    assert started(effects) == [], "the outcome of 1 is not durable yet"
    assert started(core.handle(Settled(SettleReport()), 0.3)) == [2]


def test_a_suspect_waits_until_other_suspects_have_gone_back() -> None:
    core = WorkerCore(WorkerSettings(concurrency=2))
    core.handle(Tick(), 0.0)
    reply = ClaimReply([claimed(1, crashes=1), claimed(2, crashes=1)])
    effects = core.handle(Claims(reply, 2), 0.1)
    assert [s.seq for e in effects if isinstance(e, Settle) for s in e.batch] == [2]
    assert started(effects) == [], "2 is still under the lease of this process"
    assert started(core.handle(Settled(SettleReport()), 0.2)) == [1]
