"""Workers that die, stop, or come back too late."""

import random
import signal
import time
from collections import Counter
from functools import partial

from commandbus import CommandStatus
from commandbus.domain.outcome import NOT_RECORDED
from commandbus.records import AuditEventType
from tests.os_processes.lab import DOMAIN, Child, Lab, wait_until

LEASE = 1.0


def trail_kinds(lab: Lab, command_id: str) -> list[AuditEventType]:
    return [event.event_type for event in lab.bus.get_audit_trail(command_id)]


def has_begun(lab: Lab, name: str) -> bool:
    return any(name in effect["worker"] for effect in lab.effects()[-400:])


def test_ten_killed_workers_lose_nothing(lab: Lab, runtime: str) -> None:
    """Each victim is killed when it has just begun something, so each leaves commands behind."""
    ids = lab.send(2_000, data={"seconds": 0.012})
    chance, victims = random.Random(7), []
    for _ in range(5):
        # Two at a time, for starting takes longest.
        for victim in lab.workers([runtime] * 2, concurrency=8, visibility_timeout=LEASE):
            wait_until(partial(has_begun, lab, f"-{victim.pid}-"), "the victim has begun", 20)
            time.sleep(chance.uniform(0, 0.03))  # any moment is as good as another to die
            victim.kill()
            victims.append(f"-{victim.pid}-")
    # Not before: on a slow machine it would have done everything when the last victim begins.
    survivor = lab.worker(runtime, concurrency=8, visibility_timeout=LEASE)
    lab.wait_until_drained()
    survivor.stop()

    effects, records = lab.effects(), lab.records()
    assert records.keys() == set(ids)
    handled = Counter(effect["id"] for effect in effects)
    never = [records[command_id] for command_id in set(ids) - handled.keys()]
    assert {record.reason for record in never} <= {"WORKER_LOST"}, "commands that nobody carried out"
    assert len(never) <= 8, "more commands were parked than can run at once"
    by_token = Counter((effect["id"], effect["fence"]) for effect in effects)
    assert max(by_token.values()) == 1, "a command ran twice under one token"
    lost_with: list[str] = []
    for command_id, record in records.items():
        assert record.status is CommandStatus.COMPLETED or record.reason == "WORKER_LOST"
        trail = lab.bus.get_audit_trail(command_id)
        kinds = [event.event_type for event in trail]
        assert kinds.count(AuditEventType.WORKER_LOST) == record.crashes
        lost_with += [
            event.details["worker"]
            for event in trail
            if event.event_type in (AuditEventType.WORKER_LOST, AuditEventType.RELEASED)
        ]
        if handled[command_id] > 1:
            unrecorded = {event.details.get("reason") for event in trail} & {NOT_RECORDED}
            assert record.crashes or unrecorded, "a second run without a reason on record"
    on_record = [name for name in victims if any(name in worker for worker in lost_with)]
    # One that was killed between a settle and the next claim held nothing.
    assert len(on_record) >= 8, f"only {len(on_record)} of 10 deaths are on record"
    lab.check_integrity()


def test_a_crash_is_on_record_and_its_work_is_done_by_another(lab: Lab, runtime: str) -> None:
    victim = lab.worker(runtime, concurrency=4, visibility_timeout=LEASE)
    ids = lab.send(4, data={"seconds": 600})
    wait_until(lambda: lab.bus.stats(DOMAIN).running == 4, "the victim holds all four", 20)
    heir = lab.worker(runtime, concurrency=4, visibility_timeout=LEASE, poll_interval=600)
    wait_until(lambda: heir.metrics()["empty_receives"] >= 1, "the heir is idle", 20)
    began = time.monotonic()
    victim.kill()
    wait_until(lambda: heir.metrics()["rescued"] == 4, "the heir took over", 20)
    # P15: lease + 1 s, and what a loaded machine may add.
    assert time.monotonic() - began < LEASE + 1 + 2
    for command_id in ids:
        record = lab.bus.get_command(command_id, domain=DOMAIN)
        assert record is not None
        assert record.crashes == 1
        assert record.status in (CommandStatus.IN_PROGRESS, CommandStatus.PENDING)
        lost = [
            event
            for event in lab.bus.get_audit_trail(command_id)
            if event.event_type is AuditEventType.WORKER_LOST
        ]
        assert len(lost) == 1
        assert f"-{victim.pid}-" in lost[0].details["worker"]


def test_sigterm_gives_back_what_was_not_begun(lab: Lab, runtime: str) -> None:
    worker = lab.worker(runtime, concurrency=2, prefetch=20, visibility_timeout=60)
    ids = lab.send(10, data={"seconds": 1.0})
    wait_until(lambda: lab.bus.stats(DOMAIN).running == 10, "all are claimed", 20)
    stopped = worker.stop()

    assert stopped["leases_lost"] == 0
    records = [lab.records()[command_id] for command_id in ids]
    counts = Counter(record.status for record in records)
    # The slots may not have begun yet when the signal comes.
    assert counts[CommandStatus.COMPLETED] <= 2
    assert counts[CommandStatus.PENDING] == 10 - counts[CommandStatus.COMPLETED]
    for record in records:
        if record.status is CommandStatus.PENDING:
            assert record.attempts == 0, "a graceful stop gives the attempt back"
            assert AuditEventType.RELEASED in trail_kinds(lab, str(record.command_id))
    lab.check_integrity()


def test_sigterm_interrupts_what_outlasts_the_grace(lab: Lab, runtime: str) -> None:
    worker = lab.worker(runtime, concurrency=2, visibility_timeout=LEASE, grace=0.2)
    lab.send(1, data={"seconds": 600})
    wait_until(lambda: lab.bus.stats(DOMAIN).running == 1, "it runs", 20)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 8
    other = lab.worker(runtime, visibility_timeout=LEASE)
    wait_until(lambda: other.metrics()["commands_received"] == 1, "another runs it", 20)


def freeze_until_another_did_it(lab: Lab, runtime: str, command_type: str) -> tuple[Child, Child, str]:
    """A worker that slept through its lease, the one that did its command, and that command."""
    zombie = lab.worker(runtime, concurrency=2, visibility_timeout=LEASE)
    frozen = lab.file.with_name("frozen")
    (command_id,) = lab.send(1, command_type, {"until": str(frozen)})
    wait_until(lambda: lab.bus.stats(DOMAIN).running == 1, "the zombie-to-be has it", 20)
    lab.freeze(zombie)
    frozen.touch()
    heir = lab.worker(runtime, concurrency=2, visibility_timeout=LEASE)
    wait_until(lambda: lab.bus.stats(DOMAIN).completed == 1, "the heir did it", 20)
    zombie.signal(signal.SIGCONT)
    return zombie, heir, command_id


def check_done_by_heir(lab: Lab, heir: Child, command_id: str) -> None:
    record = lab.bus.get_command(command_id, domain=DOMAIN)
    assert record is not None
    # A signal stopped the process, and no command did: it counts no crash.
    assert (record.status, record.attempts, record.crashes) == (CommandStatus.COMPLETED, 1, 0)
    assert record.worker is not None
    assert f"-{heir.pid}-" in record.worker
    kinds = trail_kinds(lab, command_id)
    assert kinds.count(AuditEventType.COMPLETED) == kinds.count(AuditEventType.RELEASED) == 1


def test_a_zombie_changes_nothing_and_works_on(lab: Lab, runtime: str) -> None:
    """Whether it is told of its lost lease before its handler ends, or after, is a matter of luck."""
    zombie, heir, command_id = freeze_until_another_did_it(lab, runtime, "note")
    heir.stop()
    (next_id,) = lab.send(1)
    wait_until(lambda: lab.bus.stats(DOMAIN).completed == 2, "the zombie works on", 20)
    check_done_by_heir(lab, heir, command_id)
    record = lab.bus.get_command(next_id, domain=DOMAIN)
    assert record is not None
    assert record.worker is not None
    assert f"-{zombie.pid}-" in record.worker


def test_an_outcome_that_comes_after_its_lease_is_refused_and_counted(lab: Lab) -> None:
    """Its loop is blocked, so nothing can cancel the handler before its outcome is there."""
    zombie, heir, command_id = freeze_until_another_did_it(lab, "asyncio", "note_blocking")
    wait_until(lambda: len(lab.effects()) == 2, "the zombie's run ended, too late", 20)
    wait_until(lambda: zombie.metrics()["leases_lost"] == 1, "its outcome was refused", 20)
    effects = lab.effects()
    assert [effect["id"] for effect in effects] == [command_id] * 2
    assert effects[0]["fence"] > effects[1]["fence"], "the heir's token is the newer one"
    check_done_by_heir(lab, heir, command_id)


def test_a_zombie_that_is_the_only_worker_does_its_command_again(lab: Lab, runtime: str) -> None:
    """Nobody else takes the expired lease back, so it must look by itself, and soon."""
    zombie = lab.worker(runtime, concurrency=2, visibility_timeout=LEASE, poll_interval=600)
    frozen = lab.file.with_name("frozen")
    (command_id,) = lab.send(1, data={"until": str(frozen)})
    wait_until(lambda: lab.bus.stats(DOMAIN).running == 1, "the zombie has it", 20)
    lab.freeze(zombie)
    frozen.touch()
    stopped = time.monotonic()
    wait_until(lambda: time.monotonic() - stopped > 2 * LEASE, "the lease is over", 20)
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: lab.bus.stats(DOMAIN).completed == 1, "it was done again", 30)
    record = lab.bus.get_command(command_id, domain=DOMAIN)
    assert record is not None
    # A crash counts if it goes on before its lease is taken back, and none while it is stopped.
    assert (record.attempts, record.crashes) in ((2, 1), (1, 0))
