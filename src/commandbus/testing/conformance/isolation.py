"""Isolation: handlers in child processes, which end when they must and take no other with them."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from commandbus.domain.lifecycle import Cancellation, CommandStatus
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import PermanentCommandError
from commandbus.runtimes.children import pool
from commandbus.testing.conformance import isolated_handlers as handlers
from commandbus.testing.conformance.helpers import AT_ONCE
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry

ONCE = RetryPolicy(max_attempts=1)
PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE
START_SECONDS = 30.0
"""A child imports the bus and the handlers; a busy machine takes its time."""


def isolated(function: Any, command_type: str = "ship", **options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register(DOMAIN, command_type, function, isolation="process", **options)
    return registry


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ended(bus: Harness, command_id: UUID) -> Any:
    """The record of a command at its end."""
    return bus.wait(command_id, START_SECONDS)


class IsolationSuite:
    def test_a_handler_runs_in_a_warm_child_process_that_is_used_again(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.pid), concurrency=1) as running:
            pids = {ended(bus, bus.send()).result for _ in range(3)}
            assert len(pids) == 1
            assert pids != {os.getpid()}
            assert (running.metrics.children, running.metrics.child_restarts) == (1, 0)
            (pid,) = pids
        assert not alive(pid)
        assert running.metrics.children == 0

    def test_a_child_sees_its_command_and_its_context(self, bus: Harness) -> None:
        correlation_id = uuid4()
        with bus.run_worker(isolated(handlers.echo, retry=AT_ONCE)) as running:
            command_id = bus.send(
                data={"ü": [1.5, None]},
                correlation_id=correlation_id,
                headers={"tenant": "t"},
                tags=["red"],
            )
            seen = ended(bus, command_id).result
            assert seen.pop("fence") > 0
            assert seen == {
                "data": {"ü": [1.5, None]},
                "command_id": str(command_id),
                "correlation_id": str(correlation_id),
                "headers": {"tenant": "t"},
                "tags": ["red"],
                "attempt": 1,
                "max_attempts": 3,
                "worker": running.worker.name,
            }

    def test_an_async_handler_runs_in_a_child(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.echo_async)):
            result = ended(bus, bus.send(data=[7])).result
            assert result["data"] == [7]
            assert result["pid"] != os.getpid()

    def test_progress_steps_and_sends_work_across(self, bus: Harness, tmp_path: Path) -> None:
        path = tmp_path / "count"
        with bus.run_worker(isolated(handlers.steps, retry=AT_ONCE)):
            record = ended(bus, command_id := bus.send(data=str(path)))
            assert (record.status, record.attempts) == (CommandStatus.COMPLETED, 2)
            assert record.result["count"] == 1
            assert path.read_text() == "x"
            assert record.progress is not None
            assert record.progress.message == "halfway"
            sent = bus.take(bus.worker("replies")).command
            assert (str(sent.command_id), sent.data) == (record.result["sent"], {"count": 1})
            assert (sent.causation_id, sent.priority, sent.tags) == (command_id, 0, ("t",))
            assert sent.correlation_id == record.correlation_id

    def test_an_async_handler_reports_and_sends_across(self, bus: Harness, tmp_path: Path) -> None:
        with bus.run_worker(isolated(handlers.steps_async)):
            record = ended(bus, bus.send(data=str(tmp_path / "count")))
            assert record.status is CommandStatus.COMPLETED
            sent = bus.take(bus.worker("replies")).command
            assert (str(sent.command_id), sent.data) == (record.result, {"count": 1})

    def test_what_a_child_asks_wrongly_is_refused_there(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.bad_requests)):
            texts = ended(bus, bus.send()).result
        expected = (
            "InvalidArgumentError: percent must be between 0 and 100, not 101.",
            "InvalidArgumentError: Unknown priority label 'urgent'",
            "InvalidArgumentError: delay must be seconds or a timedelta, not 'soon'.",
            "InvalidArgumentError: An argument has a wrong type: ",
            "InvalidOperationError: context.bus.get_command is not there in a child process",
            "PermanentCommandError: [NOT_PROVIDED] int stays in the worker process",
            "InvalidOperationError: context.complete is not possible in a child process",
        )
        assert len(texts) == len(expected)
        for text, begin in zip(texts, expected, strict=True):
            assert text.startswith(begin)

    def test_a_loop_in_c_ends_at_its_timeout_and_its_slot_works_on(self, bus: Harness) -> None:
        registry = isolated(handlers.loop_in_c, timeout=0.4, retry=ONCE)
        with bus.run_worker(registry, concurrency=1) as running:
            assert ended(bus, bus.send(data="short")).status is CommandStatus.COMPLETED
            began = time.monotonic()
            record = ended(bus, bus.send())
            took = time.monotonic() - began
            assert (record.status, record.error_code) == (PARKED, "HANDLER_TIMEOUT")
            assert 0.4 <= took < 3.0
            assert running.metrics.child_kills == {"timeout": 1}
            assert ended(bus, bus.send(data="short")).status is CommandStatus.COMPLETED
            assert running.metrics.child_restarts == 1
            assert running.worker.health_status.report().stuck_threads == 0

    def test_messages_without_a_pause_do_not_put_off_the_timeout(
        self, bus: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[float] = []

        def take(fields: dict[str, object]) -> None:
            taken.append(time.monotonic())
            assert taken[-1] < taken[0] + 10, "the handler outlived its timeout"
            time.sleep(0.001)

        monkeypatch.setattr(pool, "_log", take)
        registry = isolated(handlers.log_without_end, timeout=0.3, retry=ONCE)
        with bus.run_worker(registry) as running:
            record = ended(bus, bus.send())
            assert (record.status, record.error_code) == (PARKED, "HANDLER_TIMEOUT")
            assert running.metrics.child_kills == {"timeout": 1}
        assert taken

    def test_a_handler_is_notified_before_it_is_killed(self, bus: Harness, tmp_path: Path) -> None:
        path = tmp_path / "tidy"
        registry = isolated(handlers.tidy_up, timeout=0.2, retry=ONCE)
        with bus.run_worker(registry) as running:
            record = ended(bus, bus.send(data=str(path)))
            assert (record.status, record.error_code) == (PARKED, "HANDLER_TIMEOUT")
            assert path.read_text() == "tidy"
            assert record.error is not None
            assert "in tidy_up" in (record.error.traceback or "")
            assert running.metrics.child_kills == {}

    def test_a_handler_may_end_well_within_its_soft_timeout(self, bus: Harness) -> None:
        registry = isolated(handlers.rescue_result, soft_timeout=0.1, timeout=30)
        with bus.run_worker(registry):
            assert ended(bus, bus.send()).result == "partial after 0 s"

    def test_an_async_handler_is_canceled_at_its_timeout(self, bus: Harness) -> None:
        registry = isolated(handlers.sleep_async, timeout=0.2, retry=ONCE)
        with bus.run_worker(registry) as running:
            record = ended(bus, bus.send())
            assert (record.status, record.error_code) == (PARKED, "HANDLER_TIMEOUT")
            assert running.metrics.child_kills == {}

    def test_a_total_timeout_counts_in_a_child(self, bus: Harness) -> None:
        registry = isolated(handlers.loop_in_python, total_timeout=0.5)
        with bus.run_worker(registry):
            record = ended(bus, bus.send())
            assert (record.status, record.error_code) == (PARKED, "TOTAL_TIMEOUT")

    def test_a_handler_over_its_memory_fails_with_the_cause(self, bus: Harness) -> None:
        registry = isolated(handlers.eat, memory="128MB", retry=ONCE)
        with bus.run_worker(registry, concurrency=1) as running:
            assert ended(bus, bus.send(data=16)).result == 16
            record = ended(bus, bus.send(data=400))
            assert (record.status, record.error_code) == (PARKED, "MEMORY_LIMIT")
            assert "memory=128 MB" in (record.error_message or "")
            assert ended(bus, bus.send(data=16)).result == 16
            assert running.metrics.child_kills == {"memory": 1}
            assert running.metrics.child_restarts == 1

    def test_a_segfault_costs_one_attempt_of_one_command(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.segfault, retry=AT_ONCE), concurrency=1):
            record = ended(bus, command_id := bus.send())
            assert (record.status, record.attempts) == (CommandStatus.COMPLETED, 2)
            assert record.crashes == 0
            (failed,) = [e for e in bus.trail(command_id) if "error" in e.details]
            assert "SIGSEGV (11)" in str(failed.details["error"])

    def test_an_exit_names_its_code(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.leave, retry=ONCE)):
            record = ended(bus, bus.send(data=3))
            assert (record.status, record.error_code) == (PARKED, "CHILD_EXITED")
            assert record.error is not None
            assert record.error.details == {"exit_code": 3}

    def test_exceptions_of_a_child_mean_the_same(self, bus: Harness) -> None:
        errors = {handlers.OutOfPaper: PermanentCommandError}
        registry = isolated(handlers.fail, retry=ONCE, errors=errors)
        with bus.run_worker(registry) as running:
            records = {
                kind: ended(bus, bus.send(data=kind))
                for kind in ("permanent", "business", "own", "exit", "plain")
            }
            seen = {kind: (r.status, r.error_code) for kind, r in records.items()}
            assert seen == {
                "permanent": (PARKED, "BROKEN"),
                "business": (CommandStatus.FAILED, "TOO_LATE"),
                "own": (PARKED, "OutOfPaper"),
                "exit": (PARKED, "SystemExit"),
                "plain": (PARKED, "ValueError"),
            }
            error = records["permanent"].error
            assert error is not None
            assert error.details == {"article": 7}
            assert records["own"].error_message == "printer 3 has 0 sheets"
            trace = records["plain"].error
            assert trace is not None
            assert "isolated_handlers.py" in (trace.traceback or "")
            assert "in fail" in (trace.frame or "")
            assert running.metrics.child_restarts == 0

    def test_an_async_handler_that_cancels_itself_fails_and_its_child_works_on(
        self, bus: Harness
    ) -> None:
        with bus.run_worker(isolated(handlers.cancel_itself, retry=ONCE), concurrency=1) as running:
            record = ended(bus, bus.send(data=True))
            assert (record.status, record.error_code) == (PARKED, "CancelledError")
            assert ended(bus, bus.send(data=False)).result == "went on"
            assert running.metrics.child_restarts == 0

    def test_a_child_logs_where_its_worker_logs(
        self, bus: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO), bus.run_worker(isolated(handlers.log)):
            ended(bus, bus.send(data=7))
        (record,) = [r for r in caplog.records if r.name == "app.isolated"]
        assert record.getMessage() == "order 7 is late"
        assert (record.levelname, getattr(record, "order", None)) == ("WARNING", 7)
        assert record.process != os.getpid()

    def test_a_cancel_reaches_a_def_handler(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.wait_for_cancel)):
            command_id = bus.send()
            eventually(lambda: bus.get(command_id).progress, START_SECONDS)
            assert bus.cancel(command_id, "customer left") is Cancellation.STOP_REQUESTED
            record = ended(bus, command_id)
            assert (record.status, record.reason) == (CommandStatus.CANCELED, "customer left")

    def test_a_cancel_ends_an_async_handler(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.sleep_async)) as running:
            command_id = bus.send()
            eventually(lambda: bus.get(command_id).progress, START_SECONDS)
            bus.cancel(command_id, "customer left")
            record = ended(bus, command_id)
            assert (record.status, record.reason) == (CommandStatus.CANCELED, "customer left")
            assert running.metrics.child_kills == {}

    def test_a_cancel_may_terminate_also_after_a_request(self, bus: Harness, tmp_path: Path) -> None:
        path = tmp_path / "pids"
        with bus.run_worker(isolated(handlers.start_another), concurrency=1) as running:
            command_id = bus.send(data=str(path))
            eventually(lambda: bus.get(command_id).progress, START_SECONDS)
            bus.cancel(command_id, "customer left")
            bus.call(bus.bus.cancel, command_id, reason="at once", terminate=True)
            record = ended(bus, command_id)
            assert (record.status, record.reason) == (CommandStatus.CANCELED, "at once")
            assert running.metrics.child_kills == {"cancel": 1}
            pids = [int(pid) for pid in path.read_text().split()]
            # The kernel has to end them, which a busy machine does in its own time.
            eventually(lambda: not any(map(alive, pids)))

    def test_a_stopped_worker_ends_its_children_and_gives_back_their_commands(
        self, bus: Harness, tmp_path: Path
    ) -> None:
        path = tmp_path / "pids"
        with bus.run_worker(isolated(handlers.start_another)) as running:
            command_id = bus.send(data=str(path))
            eventually(lambda: bus.get(command_id).progress, START_SECONDS)
            running.stop(0.1)
            record = bus.get(command_id)
            assert (record.status, record.attempts) == (CommandStatus.PENDING, 0)
            pids = [int(pid) for pid in path.read_text().split()]
            eventually(lambda: not any(map(alive, pids)))
            assert running.metrics.children == 0

    def test_a_lost_lease_ends_the_child(self, bus: Harness, tmp_path: Path) -> None:
        path = tmp_path / "pids"
        registry = isolated(handlers.start_another)
        with bus.run_worker(
            registry, concurrency=1, visibility_timeout=1, statement_timeout=0.5
        ) as run:
            command_id = bus.send(data=str(path))
            eventually(lambda: bus.get(command_id).progress, START_SECONDS)
            bus.pause()
            bus.advance(2)
            eventually(lambda: run.metrics.child_kills.get("lease"))
            pids = [int(pid) for pid in path.read_text().split()]
            eventually(lambda: not any(map(alive, pids)))
            assert run.metrics.leases_lost == 1
            eventually(lambda: run.worker.in_flight_count == 0)

    def test_concurrency_counts_children(self, bus: Harness) -> None:
        registry = isolated(handlers.wait_for_cancel)
        with bus.run_worker(registry, concurrency=2) as running:
            ids = [bus.send() for _ in range(4)]
            eventually(lambda: sum(bus.get(i).progress is not None for i in ids) == 2, START_SECONDS)
            assert running.metrics.children == 2
            for command_id in ids:
                bus.cancel(command_id)
            for command_id in ids:
                assert ended(bus, command_id).status is CommandStatus.CANCELED
            assert running.metrics.children == 2

    def test_middleware_is_around_a_child(self, bus: Harness) -> None:
        seen: list[Any] = []
        registry = isolated(handlers.fail, retry=ONCE)
        registry.register(DOMAIN, "pid", handlers.pid, isolation="process")

        @registry.middleware
        def around(command: Any, context: Any) -> Any:
            try:
                seen.append((yield))
            except Exception as error:
                seen.append(type(error).__name__)
                raise

        with bus.run_worker(registry):
            pid = ended(bus, bus.send(command_type="pid")).result
            ended(bus, bus.send(data="plain"))
        assert seen == [pid, "ValueError"]

    def test_a_thread_that_a_call_has_left_cannot_act_for_the_next(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.leave_thread), concurrency=1) as running:
            first, second = (bus.send(data={"first": one}) for one in (True, False))
            assert ended(bus, first).status is CommandStatus.COMPLETED
            record = ended(bus, second)
            assert running.metrics.child_restarts == 0
        charged, refusals = record.result
        assert charged == "by the second"
        assert len(refusals) == 3
        assert record.progress is None
        assert list(bus.query(command_type="late")) == []

    def test_a_thread_that_a_call_has_left_takes_no_message_of_the_next(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.leave_asking_thread, retry=ONCE), concurrency=1):
            sent = {number: bus.send(data=number) for number in range(1, 21)}
            for number, command_id in sent.items():
                record = ended(bus, command_id)
                assert record.result == number
                assert record.progress is None or record.progress.percent == number

    def test_a_forked_process_that_returns_shifts_no_result(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.return_twice, retry=ONCE), concurrency=1):
            sent = [bus.send(data=number) for number in (1, 2, 3)]
            assert [ended(bus, command_id).result for command_id in sent] == [1, 2, 3]

    def test_errors_of_a_handler_are_not_taken_for_those_of_its_child(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.misfit, retry=ONCE), concurrency=1) as running:
            codes = [ended(bus, bus.send(data=kind)).error_code for kind in ("timeout", "value")]
            assert codes == ["TimeoutError", "ValidationError"]
            assert (running.metrics.child_restarts, running.metrics.child_kills) == (0, {})

    def test_a_child_that_does_not_read_ends_at_the_timeout(self, bus: Harness) -> None:
        registry = isolated(handlers.pid, timeout=0.5, retry=ONCE)
        with bus.run_worker(registry, concurrency=1) as running:
            pid = ended(bus, bus.send()).result
            os.kill(pid, signal.SIGSTOP)
            record = ended(bus, bus.send(data="x" * 250_000))  # more than its socket holds
            assert (record.status, record.error_code) == (PARKED, "HANDLER_TIMEOUT")
            assert running.metrics.child_kills == {"timeout": 1}
            assert ended(bus, bus.send()).result != pid

    @pytest.mark.skipif(
        not hasattr(os, "pidfd_open"), reason="only Linux tells of the end of a process"
    )
    def test_the_death_of_a_child_is_seen_while_its_socket_is_held(self, bus: Harness) -> None:
        with bus.run_worker(isolated(handlers.die_with_heirs, retry=ONCE)):
            record = ended(bus, bus.send())
        assert (record.status, record.error_code) == (PARKED, "CHILD_KILLED")
