"""Fixed mutants, always tried: changes that tests once did not notice. And those that are never tried,
because they behave like the original."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.mutants import Mutant

SRC = "src/commandbus/"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
KNOWN: dict[str, tuple[str, str, str, str]] = {
    "the sizer is never started": (
        "runtimes/worker.py", "services.append(Sizer(self, low, high))", "pass",
        ("tests/health/test_workers.py::"
        "test_a_worker_with_bounds_follows_its_load"),
    ),
    "the average process time is 0": (
        "worker/metrics.py", "return self.process_seconds / self.processed if self.processed else 0.0",
        "return 0.0",
        ("tests/conformance/test_worker_loop.py::"
        "TestWorkerLoop::test_the_average_time_of_handlers_is_theirs"),
    ),
    "no look after a reconnect": (
        "engines/postgres/listener.py", "self._hub.wake_all(RECONNECT)", "pass",
        ("tests/postgres/test_wakeups.py::"
        "test_a_listener_that_is_back_makes_its_workers_look_once"),
    ),
    "HealthStatus has no lock": (
        "worker/health.py", "self._lock = threading.Lock()",
        "self._lock = __import__('contextlib').nullcontext()",
        ("tests/health/test_status.py::"
        "test_counting_from_many_threads_loses_nothing"),
    ),
    "create_pool checks no connection": (
        "engines/postgres/planning.py", '"check": ConnectionPool.check_connection,', "",
        ("tests/postgres/test_layers.py::"
        "test_the_pool_for_handlers_gives_out_no_dead_connection"),
    ),
    "statement_timeout is set for the session": (
        "engines/postgres/transactions.py", "set_config('statement_timeout', '{milliseconds}', true)",
        "set_config('statement_timeout', '{milliseconds}', false)",
        ("tests/postgres/test_sessions.py::"
        "test_the_workers_settings_end_with_the_transaction"),
    ),
    "the memory queue's enqueue does not notify": (
        "engines/memory/queue.py", "self._watch_depth()\n            self._changed.notify()",
        "self._watch_depth()",
        ("tests/unit/test_queue.py::"
        "test_a_consumer_in_another_thread_is_woken_at_once"),
    ),
    "LISTEN is always on the default schema's channel": (
        "engines/postgres/listener.py", "channel_of(self._location.schema)",
        'channel_of("commandbus")',
        ("tests/postgres/test_wakeups.py::"
        "test_wake_ups_arrive_in_any_schema"),
    ),
    "a worker reports a wrong host": (
        "worker/asked.py", "host=socket.gethostname(),", 'host="elsewhere",',
        ("tests/conformance/test_insight.py::"
        "TestWorkers::test_a_running_worker_is_listed_and_a_stopped_one_is_not"),
    ),
    "a worker reports a wrong pid": (
        "worker/asked.py", "pid=os.getpid(),", "pid=1,",
        ("tests/conformance/test_insight.py::"
        "TestWorkers::test_a_running_worker_is_listed_and_a_stopped_one_is_not"),
    ),
    "handlers of the thread runtime share a context": (
        "runtimes/threads/worker.py",
        "own.run(call.handler.function, call.command, call.context)",
        "call.handler.function(call.command, call.context)",
        ("tests/health/test_workers.py::"
        "test_context_variables_do_not_leak_to_the_next_command"),
    ),
}  # fmt: skip
"""By what they break: file, text, what replaces it, and the test that has to kill it."""


def known_mutants(root: Path) -> tuple[list[Mutant], list[str]]:
    """The fixed mutants, and those whose text is not in the source any more."""
    found: list[Mutant] = []
    gone: list[str] = []
    for name, (file, old, new, test) in KNOWN.items():
        path = SRC + file
        source = (root / path).read_text(encoding="utf-8")
        start = source.find(old)
        if start < 0:
            gone.append(name)
            continue
        line = source.count("\n", 0, start) + 1
        end = start + len(old)
        found.append(Mutant(path, "fixed", line, "fixed", old, new, start, end, name=name, test=test))
    return found, gone


def equivalents() -> set[str]:
    """Keys of mutants that behave like the original; the argument is in the file, behind a #."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line.partition("  #")[0].strip() for line in lines if line and not line.startswith("#")}
