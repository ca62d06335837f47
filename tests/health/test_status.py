"""The judgement over a worker's machinery, without a worker."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from commandbus import HealthState, HealthStatus
from commandbus.worker.health import Cause
from commandbus.worker.watchdog import RestartPolicy, Verdict


def test_a_new_worker_is_healthy() -> None:
    health = HealthStatus()
    assert health.state is HealthState.HEALTHY
    assert health.reasons == ()


def test_ten_failures_in_a_row_degrade() -> None:
    health = HealthStatus()
    for _ in range(9):
        health.record_failure(OSError("down"))
    assert health.state is HealthState.HEALTHY
    health.record_failure(OSError("down"))
    assert health.state is HealthState.DEGRADED
    assert health.reasons == ("10 claims in a row failed within 0 s, the last: OSError: down",)


def test_claims_that_fail_for_half_a_minute_degrade_however_few_they_are() -> None:
    moment = [0.0]
    health = HealthStatus(monotonic=lambda: moment[0])
    health.record_failure("down")
    moment[0] = 29.0
    health.record_failure("down")
    assert health.state is HealthState.HEALTHY
    moment[0] = 30.0
    assert health.state is HealthState.DEGRADED
    assert health.reasons == ("2 claims in a row failed within 30 s, the last: down",)


def test_claims_that_fail_for_as_long_as_silence_is_borne_are_critical_and_not_restarted_for() -> None:
    moment = [0.0]
    health = HealthStatus(60.0, monotonic=lambda: moment[0])
    health.record_failure("down")
    moment[0] = 60.0
    report = health.report()
    assert (report.state, report.causes) == (HealthState.CRITICAL, ())
    assert report.reasons == ("1 claims in a row failed within 60 s, the last: down",)


def test_settles_that_pass_do_not_hide_that_claims_fail() -> None:
    health = HealthStatus()
    for _ in range(10):
        health.record_failure("down", "claim")
        health.record_success("settle")
    assert health.state is HealthState.DEGRADED


def test_a_lease_that_cannot_be_taken_back_degrades_until_it_is_gone() -> None:
    health = HealthStatus()
    health.record_stuck_leases(("lease 7 cannot be taken back",))
    assert (health.state, health.reasons) == (HealthState.DEGRADED, ("lease 7 cannot be taken back",))
    health.record_stuck_leases(())
    assert health.state is HealthState.HEALTHY


def test_a_success_ends_the_row() -> None:
    health = HealthStatus()
    for _ in range(10):
        health.record_failure("down")
    health.record_success()
    assert health.state is HealthState.HEALTHY
    assert health.report().last_error == "down"


def test_three_stuck_threads_are_critical_until_one_returns() -> None:
    health = HealthStatus()
    for _ in range(3):
        health.record_stuck_thread()
    assert health.state is HealthState.CRITICAL
    assert "3 threads are stuck" in health.reasons[0]
    assert health.report().causes == (Cause.THREADS,)
    health.record_thread_back()
    assert (health.state, health.reasons) == (
        HealthState.DEGRADED,
        ("2 threads given up after a timeout may still run a handler",),
    )


def test_a_stuck_thread_degrades_until_it_returns_also_across_a_restart() -> None:
    health = HealthStatus()
    health.record_stuck_thread()
    assert (health.state, health.report().causes) == (HealthState.DEGRADED, ())
    health.reset()
    health.record_stuck_thread()
    assert (health.state, health.report().stuck_threads) == (HealthState.DEGRADED, 2)
    health.record_thread_back()
    health.record_thread_back()
    assert health.state is HealthState.HEALTHY


def test_five_pool_exhaustions_in_a_row_are_critical() -> None:
    health = HealthStatus()
    for _ in range(5):
        health.record_pool_exhaustion("no connection")
    assert health.state is HealthState.CRITICAL
    health.record_success()
    assert health.state is HealthState.HEALTHY


def test_critical_outranks_degraded_and_both_are_shown() -> None:
    health = HealthStatus()
    for _ in range(10):
        health.record_pool_exhaustion("no connection")
    report = health.report()
    assert report.state is HealthState.CRITICAL
    assert len(report.reasons) == 2
    assert len(report.causes) == 1, "what makes it worse than DEGRADED"


class Switching(HealthStatus):
    """Lets other threads run between the read of a counter and the write that follows."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ("_failing", "_stuck", "_left_behind", "_exhaustions", "_starved", "_stalls"):
            time.sleep(0.0001)
        return value


@pytest.mark.parametrize(
    ("count", "field"),
    [
        (lambda health: health.record_failure("x"), "consecutive_failures"),
        (lambda health: health.record_pool_exhaustion("x"), "pool_exhaustions"),
        (lambda health: health.record_starvation("x"), "pool_exhaustions"),
        (lambda health: health.record_stuck_thread(), "stuck_threads"),
        (lambda health: health.record_loop_stall("x"), "loop_stalls"),
    ],
)
def test_counting_from_many_threads_loses_nothing(
    count: Callable[[HealthStatus], None], field: str
) -> None:
    health = Switching()

    def work() -> None:
        for _ in range(25):
            count(health)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert getattr(health.report(), field) == 100


def test_threads_that_come_back_at_once_are_all_counted() -> None:
    health = Switching()
    for _ in range(100):
        health.record_stuck_thread()

    def come_back() -> None:
        for _ in range(25):
            health.record_thread_back()

    threads = [threading.Thread(target=come_back, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert health.report().stuck_threads == 0


def test_the_report_is_plain_json() -> None:
    assert HealthStatus().to_dict() == {
        "state": "HEALTHY",
        "reasons": (),
        "consecutive_failures": 0,
        "stuck_threads": 0,
        "pool_exhaustions": 0,
        "loop_stalls": 0,
        "last_error": None,
        "last_stall": None,
        "causes": (),
    }


@pytest.mark.parametrize("state", [HealthState.HEALTHY, HealthState.DEGRADED])
def test_only_a_critical_worker_is_restarted(state: HealthState) -> None:
    assert RestartPolicy().judge(state, 0.0) is Verdict.LEAVE


def test_restarts_hold_off_and_give_up_in_the_end() -> None:
    policy = RestartPolicy(hold_off=30, restarts_max=3, window=600)
    verdicts = [policy.judge(HealthState.CRITICAL, now) for now in (0, 10, 31, 62, 93)]
    assert verdicts == [
        Verdict.RESTART,
        Verdict.LEAVE,
        Verdict.RESTART,
        Verdict.RESTART,
        Verdict.GIVE_UP,
    ]


def test_old_restarts_are_forgotten() -> None:
    policy = RestartPolicy(hold_off=1, restarts_max=1, window=100)
    assert policy.judge(HealthState.CRITICAL, 0) is Verdict.RESTART
    assert policy.judge(HealthState.CRITICAL, 50) is Verdict.GIVE_UP
    assert policy.judge(HealthState.CRITICAL, 101) is Verdict.RESTART


def test_handlers_without_connections_are_critical_until_one_gets_one() -> None:
    health = HealthStatus()
    for _ in range(5):
        health.record_starvation(OSError("no connection"))
        health.record_success()  # claims and settles have connections of their own
    assert health.state is HealthState.CRITICAL
    assert health.report().pool_exhaustions == 5
    health.record_connection()
    assert health.state is HealthState.HEALTHY


def test_silence_is_critical_until_there_is_an_answer() -> None:
    health = HealthStatus(silence_max=0.0)
    health.asked("claim")
    assert health.state is HealthState.CRITICAL
    assert "a claim has had no answer" in health.reasons[0]
    health.answered("claim")
    assert health.state is HealthState.HEALTHY
    health.asked("settle")
    health.reset()
    assert health.state is HealthState.HEALTHY
