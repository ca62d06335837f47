"""What the suites have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import pytest

from commandbus.domain.retry import RetryPolicy
from commandbus.errors import PermanentCommandError
from commandbus.operations.presence import report_worker
from commandbus.store.documents import Document
from commandbus.store.op import Op
from commandbus.store.records import Capacity
from commandbus.store.replies import follow_up
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.worker.handlers import HandlerRegistry

T = TypeVar("T")

AT_ONCE = RetryPolicy(max_attempts=3, backoff_schedule=[0])
"""Retries without waiting."""

SLACK_SECONDS = 3.0
"""How much a store with a clock of its own may have moved on by itself."""


def require(bus: Harness, capability: str) -> None:
    """Skip, and say why, where the engine does not claim a capability."""
    if not getattr(bus.capabilities, capability):
        pytest.skip(f"{bus.configuration.name} has no capability {capability}")


def about(seconds: float) -> Any:
    """So many seconds, as far as a store's own clock can tell."""
    return pytest.approx(seconds, abs=SLACK_SECONDS)


def registry_of(domain: str = DOMAIN, /, **handlers: Callable[..., Any]) -> HandlerRegistry:
    """A registry with these handlers, by command type."""
    registry = HandlerRegistry()
    for command_type, function in handlers.items():
        registry.register(domain, command_type, function)
    return registry


def park(bus: Harness, data: Any = None, command_type: str = "ship", **options: Any) -> UUID:
    """Send a command and let it end in the troubleshooting queue."""
    command_id = bus.send(DOMAIN, command_type, data, **options)
    worker = bus.worker()
    taken = bus.take(worker)
    bus.call(worker.fail, taken, PermanentCommandError("BROKEN", "no such article"))
    return command_id


def complete(bus: Harness, **options: Any) -> UUID:
    """Send a command and complete it."""
    command_id = bus.send(**options)
    worker = bus.worker()
    bus.call(worker.complete, bus.take(worker))
    return command_id


class ReadBefore:
    """A store whose first reader of a document sees an earlier version: another writer was
    first."""

    def __init__(self, store: Any, document: Document | None) -> None:
        self._store, self._once = store, [document]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_document(self, kind: str, key: str) -> Op[Document | None]:
        if self._once:
            return self._once.pop()
        found: Document | None = yield from self._store.get_document(kind, key)
        return found


def crash(bus: Harness, seconds: float = 30.0) -> None:
    """A worker takes a command and is never heard of again; its lease runs out."""
    bus.take(bus.worker(name="doomed"), visibility_timeout=seconds)
    bus.advance(seconds + 1)


def together(count: int, function: Callable[[int], T]) -> list[T | BaseException]:
    """What `function(0)` … `function(count - 1)` return or raise, when they all begin at once."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count

    def work(number: int) -> None:
        try:
            barrier.wait(10)
            results[number] = function(number)
        except BaseException as error:  # the test looks at what was raised
            results[number] = error

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread did not end"
    return results


class Spy:
    """Counts the calls of a method of an object, and may let the first ones fail."""

    def __init__(self, method: Callable[..., Any], failures: tuple[BaseException, ...]) -> None:
        self._method = method
        self._failures = list(failures)
        self._changed = threading.Condition()
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._changed:
            self.calls += 1
            self._changed.notify_all()
            failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        return self._method(*args, **kwargs)

    def wait_for(self, calls: int, timeout: float = 10.0) -> None:
        with self._changed:
            enough = self._changed.wait_for(lambda: self.calls >= calls, timeout)
            assert enough, f"{self.calls} of {calls} calls came within {timeout:g} s"


def smuggle(bus: Harness, domain: str, command_type: str, data: Any, correlation_id: UUID) -> UUID:
    """Put a command into the store past all checks, as another program with rights on it could."""
    text = msgspec.json.encode(data).decode()
    command = follow_up(domain, command_type, text, correlation_id, correlation_id)
    bus.run(bus.store.insert([command], Capacity()))
    return command.command_id


@contextmanager
def spy_on(target: Any, name: str, *failures: BaseException) -> Iterator[Spy]:
    """Watch `target.name` for the length of a block; the first calls raise `failures`."""
    watched = getattr(target, name)
    spy = Spy(watched, failures)
    setattr(target, name, spy)
    try:
        yield spy
    finally:
        setattr(target, name, watched)


class Stage:
    """A domain of its own for one situation, with hands instead of a running worker."""

    def __init__(self, bus: Harness, domain: str) -> None:
        self.bus, self.domain = bus, domain
        self._hand = bus.worker(domain)

    def serve(self, *types: str, count: int = 1, **fields: Any) -> None:
        """Live workers, as they report themselves."""
        for _ in range(count):
            info = self.bus.worker(self.domain)._presence(self.bus.runtime)
            known = tuple((self.domain, one) for one in types or ("ship",))
            fields = {"concurrency": 4} | fields
            info = msgspec.structs.replace(info, command_types=known, **fields)
            self.bus.run(report_worker(self.bus.bus.scope, info, 0))

    def report_hand(self, **fields: Any) -> None:
        """The worker that takes commands by hand reports itself, too."""
        info = msgspec.structs.replace(self._hand._presence(self.bus.runtime), **fields)
        self.bus.run(report_worker(self.bus.bus.scope, info, 0))

    def send(self, command_type: str = "ship", **options: Any) -> Any:
        return self.bus.send(self.domain, command_type, None, **options)

    def take(self) -> Any:
        return self.bus.take(self._hand)

    def fail(self, error: Exception) -> None:
        self.bus.call(self._hand.fail, self.take(), error)

    def complete(self) -> None:
        self.bus.call(self._hand.complete, self.take())

    def limit(self, **options: Any) -> None:
        self.bus.call(self.bus.bus.set_limit, self.domain, **options)


@dataclass(frozen=True)
class Situation:
    title: str
    stage: Callable[[Stage], Any]
    """Sets it up, and returns the id to ask about."""
    codes: tuple[str, ...]
    says: str
    """A part of the answer."""
    cure: str
    needs: str = ""
    """A capability of the store, without which it cannot come about."""


TABLE: list[Situation] = []


def situation(
    title: str, *codes: str, says: str, cure: str, needs: str = ""
) -> Callable[[Callable[[Stage], Any]], Callable[[Stage], Any]]:
    def add(stage: Callable[[Stage], Any]) -> Callable[[Stage], Any]:
        TABLE.append(Situation(title, stage, codes, says, cure, needs))
        return stage

    return add
