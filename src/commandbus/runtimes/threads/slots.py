"""The slots of the thread runtime: named threads that take one command after another.

A slot that finds work takes no lock: threads that meet at one for every command stand in line for
it, and the interpreter has to hand over from one to the next each time. What they share is touched by
single operations of deques and dictionaries, which nothing interrupts; only falling asleep and waking
others is done under the lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from commandbus.runtimes.containment import CANCEL_SECONDS
from commandbus.runtimes.threads.loop import LoopCall
from commandbus.store.records import Claimed, Settlement
from commandbus.worker.base import split_by_lease
from commandbus.worker.execution import Call

T = TypeVar("T")


class Slot:
    """A thread's place. Once abandoned, whatever its thread still does is ignored."""

    __slots__ = ("began", "deadline", "errand", "interrupted", "runs", "thread")

    def __init__(self) -> None:
        self.runs = False
        """Whether its thread is in a handler, as far as the thread knows."""
        self.began = 0.0
        self.deadline = 0.0
        self.errand: LoopCall | None = None
        """Its handler on the loop, if that is an `async def` one."""
        self.interrupted = False
        """Whether its handler must end because the worker stops."""
        self.thread: threading.Thread | None = None


class Slots:
    """As many threads as handlers may run at once, and the commands that wait for them."""

    def __init__(
        self,
        name: str,
        work: Callable[[Slot, Claimed], Settlement],
        *,
        begun: Callable[[], None],
        finished: Callable[[], None],
        given_up: Callable[[], None],
        returned: Callable[[], None],
    ) -> None:
        self._name = name
        self._work = work
        self._on_begun = begun
        self._on_finished = finished
        self._on_given_up = given_up
        self._on_returned = returned
        self._finished: deque[Settlement] = deque()
        self._told = False
        """Whether the loop was woken for finished commands, and has not collected them yet."""
        self._size = 0
        self._count = 0
        self._ready: deque[Claimed] = deque()
        self._running: dict[Slot, Call] = {}
        """Who takes a call out ends it: its own thread by finishing, or another by giving it up."""
        self._interrupted = False
        self._changed = threading.Condition()
        self._members: set[Slot] = set()

    def resize(self, size: int) -> None:
        """Grow at once; shrink as threads get free."""
        with self._changed:
            self._size = size
            while len(self._members) < size:
                self._spawn()
            self._changed.notify_all()

    def start(self, claimed: list[Claimed]) -> None:
        self._ready.extend(claimed)
        with self._changed:
            self._changed.notify()

    def begin(self, slot: Slot, call: Call, seconds: float) -> None:
        """A slot's thread is about to call a handler, which may take so long."""
        slot.began = time.monotonic()
        slot.deadline = slot.began + seconds
        slot.runs = True
        self._running[slot] = call
        if self._interrupted:  # it was taken just before; interrupt() may have missed it
            _interrupt(slot, call)

    def withdraw(self, lease_ids: frozenset[int] | None) -> list[Claimed]:
        """Take back what no thread has begun."""
        with self._changed:
            taken, kept = split_by_lease(_drained(self._ready), lease_ids)
            self._ready.extendleft(reversed(kept))
            if kept:
                self._changed.notify()
        return taken

    def collect(self) -> list[Settlement]:
        """What finished since the last call."""
        # First this: who finishes from now on tells again.
        self._told = False
        return _drained(self._finished)

    def abandon(self, unwanted: Callable[[Slot, Call], bool]) -> list[tuple[Slot, Call]]:
        """Give up running calls and put new threads in their places; a thread cannot be stopped."""
        with self._changed:
            chosen = [
                (slot, call)
                for slot, call in list(self._running.items())
                if unwanted(slot, call) and self._running.pop(slot, None) is not None
            ]
            for slot, _ in chosen:
                self._on_given_up()
                _cancel(slot)
                self._members.discard(slot)
                if len(self._members) < self._size:
                    self._spawn()
        return chosen

    def interrupt(self) -> None:
        """The worker stops: handlers on the loop are canceled and may tidy up for a moment; those in
        threads, which cannot be stopped, are over their time at once."""
        self._interrupted = True
        for slot, call in list(self._running.items()):
            _interrupt(slot, call)

    def stop_calls(self, seqs: frozenset[int]) -> None:
        """Ask those to stop that can be asked; `def` handlers look for themselves."""
        for slot, call in list(self._running.items()):
            if call.claimed.seq in seqs:
                _cancel(slot)

    def next_deadline(self) -> float | None:
        return min((slot.deadline for slot in list(self._running)), default=None)

    def close(self, timeout: float) -> None:
        """End idle threads and wait a moment for the rest; stuck ones die with the process."""
        with self._changed:
            self._size = 0
            members = list(self._members)
            self._changed.notify_all()
        until = time.monotonic() + timeout
        for slot in members:
            if slot.thread is not None and slot.thread is not threading.current_thread():
                slot.thread.join(max(0.0, until - time.monotonic()))

    def _spawn(self) -> None:
        slot = Slot()
        self._count += 1
        name = f"{self._name}-{self._count}"
        slot.thread = threading.Thread(target=self._run, args=(slot,), name=name, daemon=True)
        self._members.add(slot)
        slot.thread.start()

    def _run(self, slot: Slot) -> None:
        self._on_begun()
        while (claimed := self._take(slot)) is not None:
            settlement = self._work(slot, claimed)
            if slot.runs:
                slot.runs = False
                if self._running.pop(slot, None) is None:
                    with self._changed:  # the caller that gave it up has said so
                        self._on_returned()
                    return
            self._finished.append(settlement)
            if not self._told:
                self._told = True
                self._on_finished()

    def _take(self, slot: Slot) -> Claimed | None:
        """The next command, after waiting for one; None to end."""
        if len(self._members) <= self._size:
            try:
                return self._ready.popleft()
            except IndexError:
                pass
        woken = False
        with self._changed:
            while len(self._members) <= self._size:
                try:
                    claimed = self._ready.popleft()
                except IndexError:
                    woken = True
                    self._changed.wait()
                    continue
                # One wakes the next: fast handlers leave most threads asleep, slow ones do not keep
                # the others waiting, and a hundred never fight over a handful of commands.
                if woken and self._ready:
                    self._changed.notify()
                return claimed
            self._members.discard(slot)
            return None


def _drained(items: deque[T]) -> list[T]:
    """All that is there now, while others may add and take."""
    found: list[T] = []
    with suppress(IndexError):
        while True:
            found.append(items.popleft())
    return found


def _interrupt(slot: Slot, call: Call) -> None:
    if call.in_child:  # its child process is killed, which ends it
        return
    seconds = CANCEL_SECONDS if call.handler.is_async else 0.0
    slot.deadline = min(slot.deadline, time.monotonic() + seconds)
    slot.interrupted = True
    _cancel(slot)


def _cancel(slot: Slot) -> None:
    errand = slot.errand
    if errand is not None:
        errand.cancel()
