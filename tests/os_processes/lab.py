"""The tests' side of the processes under test: start, hear, order, kill."""

import fcntl
import json
import os
import queue
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from commandbus import CommandRecord, SendRequest
from commandbus.sync import SyncCommandBus
from tests.os_processes import journal, nursery

DOMAIN = "work"
PATIENCE = 60.0
"""Bound of every wait: reached only when something is wrong."""


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Ask again every few milliseconds until the answer is true; a test fails at the bound."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)
    return answer


class Child:
    """A process and what it says."""

    def __init__(self, module: str, config: dict[str, Any]) -> None:
        self.config = config
        self.process = nursery.shared().start(module, config)
        self.pid = self.process.pid
        self.errors = ""
        self.was_ready = threading.Event()
        """It has said that it is ready, heard or not: signals find their handlers."""
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._hear, self._hear_errors)
        ]
        for thread in self._threads:
            thread.start()

    def _hear(self) -> None:
        for line in self.process.stdout:
            said = json.loads(line)
            if said["event"] == "ready":
                self.was_ready.set()
            self._said.put(said)
        self._said.put(None)

    def _hear_errors(self) -> None:
        for line in self.process.stderr:
            self.errors += line

    def expect_any(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """The next thing it says."""
        try:
            said = self._said.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"nothing was said in {seconds:g} s\n{self.errors}") from None
        assert said is not None, f"ended with {self.process.wait()}\n{self.errors}"
        return said

    def expect(self, event: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The next thing it says, which must be this."""
        said = self.expect_any(seconds)
        assert said["event"] == event, f"{event!r} expected, not {said}"
        return said

    def order(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def metrics(self) -> dict[str, Any]:
        self.order("metrics")
        return self.expect("metrics")

    def signal(self, number: signal.Signals) -> None:
        """Nothing happens to one that has ended."""
        self.process.send_signal(number)

    def is_frozen(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False  # it has just ended
        return stat.rpartition(")")[2].split()[0] == "T"

    def kill(self) -> int:
        self.process.kill()
        return self.wait()

    def stop(self) -> dict[str, Any]:
        """SIGTERM, and what a worker says when it has stopped."""
        self.signal(signal.SIGTERM)
        stopped = self.expect("stopped")
        assert self.wait() == 0, self.errors
        return stopped

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit code; pipes are closed."""
        code = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(30)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # an order that was never read
        return code

    def cpu_seconds(self) -> float:
        """User and system time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Lab:
    """One SQLite file and the processes on it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "lab.db"
        self.url = f"sqlite:///{self.file}"
        self.effects_file = folder / "effects.jsonl"
        self.children: list[Child] = []
        self.bus = SyncCommandBus(self.url)

    def __enter__(self) -> Self:
        self.bus.open()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            if child.process.poll() is None:
                child.kill()
            elif not child.process.stdout.closed:  # type: ignore[union-attr]
                child.wait()
        self.bus.close()

    def start(self, role: str, **config: Any) -> Child:
        defaults = {"url": self.url, "domain": DOMAIN, "effects": str(self.effects_file)}
        child = Child("tests.os_processes.child", defaults | {"role": role} | config)
        self.children.append(child)
        return child

    def worker(self, runtime: str, **config: Any) -> Child:
        """A worker that is ready to claim."""
        child = self.start("worker", runtime=runtime, **config)
        child.expect("ready")
        return child

    def workers(self, runtimes: Sequence[str], **config: Any) -> list[Child]:
        """Workers started together, each ready."""
        children = [self.start("worker", runtime=runtime, **config) for runtime in runtimes]
        for child in children:
            child.expect("ready")
        return children

    def freeze(self, child: Child) -> None:
        """SIGSTOP at a moment when the process does not hold the file's write lock: with it, nobody
        else could write until it goes on."""
        lock = os.open(f"{self.file}.lock", os.O_RDWR)

        def frozen_without_lock() -> bool:
            child.signal(signal.SIGSTOP)
            wait_until(child.is_frozen, "it is frozen", 30)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                child.signal(signal.SIGCONT)
                return False
            return True

        try:
            wait_until(frozen_without_lock, "it is frozen without the lock", 30)
        finally:
            os.close(lock)

    def send(self, count: int, command_type: str = "note", data: Any = None, **more: Any) -> list[str]:
        requests = [SendRequest(DOMAIN, command_type, data, **more) for _ in range(count)]
        return [str(result.command_id) for result in self.bus.send_many(requests)]

    def effects(self) -> list[dict[str, Any]]:
        return list(journal.read(self.effects_file))

    def records(self) -> dict[str, CommandRecord]:
        found: dict[str, CommandRecord] = {}
        after: str | None = None
        while True:
            page = self.bus.query_commands(domain=DOMAIN, limit=1_000, after=after)
            found |= {str(record.command_id): record for record in page}
            if (after := page.next) is None:
                return found

    def wait_until_drained(self, seconds: float = PATIENCE) -> None:
        def drained() -> bool:
            stats = self.bus.stats(DOMAIN)
            return stats.ready + stats.scheduled + stats.running == 0

        wait_until(drained, "every command has ended", seconds)

    def statuses(self) -> Counter[str]:
        return Counter(record.status.value for record in self.records().values())

    def check_integrity(self) -> None:
        connection = sqlite3.connect(self.file)
        try:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
            # Every command is in exactly one place: waiting, under a lease, or at an outcome.
            places = connection.execute(
                """select count(*) from commandbus_command c where
                   (select count(*) from commandbus_queue q where q.seq = c.seq)
                 + (select count(*) from commandbus_scheduled s where s.seq = c.seq)
                 + (select count(*) from commandbus_held h where h.seq = c.seq)
                 + (select count(*) from commandbus_outcome o where o.seq = c.seq)
                 + (select count(*) from commandbus_lease l, json_each(l.members) m
                    where json_extract(m.value, '$[0]') = c.seq) <> 1"""
            ).fetchone()
            assert places == (0,), "commands that are nowhere, or in two places"
        finally:
            connection.close()
