"""Handlers that kill, hang or confuse their worker: parked within a bound, and nobody else suffers."""

import pytest

from commandbus import CommandStatus
from tests.os_processes.lab import DOMAIN, Child, Lab, wait_until

GENTLE = [
    "base_exception",
    "base_exception_async",
    "system_exit",
    "system_exit_async",
    "keyboard_interrupt_async",
    "unprintable",
    "cancelled",
]
LEASE = 0.5


def supervise(lab: Lab, runtime: str, lease: float = LEASE, **config: object) -> Child:
    """Start a worker again whenever it died, until every command has ended."""
    worker = lab.worker(runtime, visibility_timeout=lease, **config)

    def drained() -> bool:
        nonlocal worker
        if worker.process.poll() is not None:
            worker.wait()
            worker = lab.worker(runtime, visibility_timeout=lease, **config)
        stats = lab.bus.stats(DOMAIN)
        return stats.ready + stats.scheduled + stats.running == 0

    wait_until(drained, "every command has ended")
    return worker


def check_parked(lab: Lab, command_id: str, reason: str) -> None:
    record = lab.bus.get_command(command_id, domain=DOMAIN)
    assert record is not None
    assert (record.status, record.reason) == (CommandStatus.IN_TROUBLESHOOTING_QUEUE, reason)
    assert record.error is not None


def check_done(lab: Lab, ids: list[str]) -> None:
    records = lab.records()
    statuses = {command_id: records[command_id].status for command_id in ids}
    assert set(statuses.values()) == {CommandStatus.COMPLETED}


@pytest.mark.parametrize("poison", ["exit", "segfault"])
def test_a_command_that_kills_its_worker_is_parked_after_three_crashes(
    lab: Lab, runtime: str, poison: str
) -> None:
    others = lab.send(20)
    (killer,) = lab.send(1, poison)
    others += lab.send(20)
    supervise(lab, runtime, concurrency=1, prefetch=0)
    check_parked(lab, killer, "WORKER_LOST")
    record = lab.bus.get_command(killer, domain=DOMAIN)
    assert record is not None
    assert (record.crashes, record.attempts) == (3, 3)
    check_done(lab, others)
    lab.check_integrity()


def test_a_killer_does_not_take_its_neighbours_with_it(lab: Lab, runtime: str) -> None:
    """Those claimed together with it share its crashes, but are innocent."""
    neighbours = lab.send(3, data={"seconds": 0.2})
    (killer,) = lab.send(1, "exit")
    neighbours += lab.send(3, data={"seconds": 0.2})
    # A lease that runs out on a slow machine counts as a crash, too: this one is long enough.
    supervise(lab, runtime, lease=2.0, concurrency=8)
    check_parked(lab, killer, "WORKER_LOST")
    check_done(lab, neighbours)


def test_base_exceptions_end_only_their_command(lab: Lab, runtime: str) -> None:
    poison = {name: lab.send(1, name)[0] for name in GENTLE}
    others = lab.send(50) + lab.send(50, "note_foreign")
    worker = lab.worker(runtime, concurrency=4)
    lab.wait_until_drained(20)
    for command_id in poison.values():
        check_parked(lab, command_id, "EXHAUSTED")
        record = lab.bus.get_command(command_id, domain=DOMAIN)
        assert record is not None
        assert record.attempts == 2
    # The worker's machinery survived them as well.
    others += lab.send(50) + lab.send(50, "note_foreign")
    lab.wait_until_drained(20)
    check_done(lab, others)
    worker.stop()


@pytest.mark.parametrize("poison", ["swallow", "endless"])
def test_a_handler_that_never_ends_is_parked_at_its_timeout(
    lab: Lab, runtime: str, poison: str
) -> None:
    (stuck,) = lab.send(1, poison)
    others = lab.send(10, data={"seconds": 0.01})
    lab.worker(runtime, concurrency=2)
    lab.wait_until_drained(20)
    check_parked(lab, stuck, "EXHAUSTED")
    record = lab.bus.get_command(stuck, domain=DOMAIN)
    assert record is not None
    assert record.error_code == "HANDLER_TIMEOUT"
    check_done(lab, others)
