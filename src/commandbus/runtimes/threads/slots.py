"""The slots of the thread runtime: named threads that take one command after another.

A slot that finds work takes no lock: threads that meet at one for every command stand in line for
it, and each hand-over costs a switch of threads. What they share is touched by
single operations of deques and dictionaries, which nothing interrupts; only falling asleep and waking
others is done under the lock.

Threads that are awake take turns for the interpreter, and each turn costs a switch of threads; those
that wait for it also wake up every few milliseconds for nothing. So only as many are awake as handlers
of that length need.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil

from commandbus.runtimes.threads.loop import LoopCall
from commandbus.store.records import Claimed, Settlement
from commandbus.worker.ending import CANCEL_SECONDS
from commandbus.worker.execution import Call
from commandbus.worker.ready import ReadyQueue, drained

SECONDS_PER_THREAD = 50e-6
"""For each part of this length that a handler takes, one more thread is awake. It is about twice what a
command costs the interpreter: threads that only wait for each other make handlers seem longer, but by
less than would keep them awake."""
HELD_UP_SECONDS = 500e-6
"""A thread whose handler takes longer than this, and than most, does not count as awake."""
SAMPLE_MIN = 8


class Slot:
    """A thread's place. Once abandoned, whatever its thread still does is ignored."""

    __slots__ = ("began", "deadline", "errand", "given_up", "interrupted", "runs", "thread")

    def __init__(self) -> None:
        self.runs = False
        """Whether its thread is in a handler, as far as the thread knows."""
        self.began = 0.0
        self.deadline = 0.0
        self.errand: LoopCall | None = None
        """Its handler on the loop, if that is an `async def` one."""
        self.interrupted = False
        """Whether its handler must end because the worker stops."""
        self.given_up = False
        """Whether the end of its run was decided without it."""
        self.thread: threading.Thread | None = None


class Slots:
    """As many threads as handlers may run at once, and the commands that wait for them."""

    def __init__(
        self,
        name: str,
        work: Callable[[Slot, Claimed], Settlement | None],
        *,
        begun: Callable[[], None],
        finished: Callable[[], None],
        given_up: Callable[[], None],
        returned: Callable[[], None],
        ageing: int | None = None,
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
        self.enough = 1
        """While more is ready, the loop is woken when so many have finished; it looks for fewer."""
        self._size = 0
        self._count = 0
        self._ready = ReadyQueue(ageing)
        self._awake = 0
        """Threads that are not asleep for want of work, or because others are enough."""
        self._awake_max = 0
        self._handler_seconds: float | None = None
        """How long most handlers take."""
        self._running: dict[Slot, Call] = {}
        """The thread that removes a call ends it: its own by finishing, or another by giving it up."""
        self._interrupted = False
        self._changed = threading.Condition()
        self._members: set[Slot] = set()

    def resize(self, size: int) -> None:
        """Grow at once; shrink as threads get free."""
        with self._changed:
            self._size = self._awake_max = size
            while len(self._members) < size:
                self._spawn()
            self._changed.notify_all()

    def fit(self, finished: Sequence[Settlement]) -> None:
        """Let as many threads be awake as handlers of this length need, beside those whose handlers
        take much longer; more and more, if all of these do."""
        if len(finished) >= SAMPLE_MIN:
            # The middle one: some handlers have to wait for the interpreter, and seem long.
            middle = sorted(each.ran for each in finished)[len(finished) // 2] / 1_000_000
            before = self._handler_seconds
            self._handler_seconds = middle if before is None else 0.7 * before + 0.3 * middle
        if self._handler_seconds is None:
            return
        wanted = 1 + ceil(self._handler_seconds / SECONDS_PER_THREAD)
        if wanted < self._size:
            since = time.monotonic() - max(HELD_UP_SECONDS, 4 * self._handler_seconds)
            held_up = sum(slot.began < since for slot in list(self._running))
            wanted += held_up
            if held_up >= self._awake_max:
                wanted = max(wanted, 2 * self._awake_max)
        wanted = min(self._size, wanted)
        if wanted == self._awake_max:
            return
        with self._changed:
            grows, self._awake_max = wanted > self._awake_max, wanted
            if grows and self._ready.waiting:
                self._changed.notify()

    @property
    def is_under_way(self) -> bool:
        """Whether something may finish without waking the loop, because more is ready."""
        return bool(self._ready.waiting or self._finished)

    def start(self, claimed: list[Claimed]) -> None:
        self._ready.add(claimed)
        with self._changed:
            if self._awake < self._awake_max:
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
            taken = self._ready.withdraw(lease_ids)
            if self._ready.waiting:
                self._changed.notify()
        return taken

    def collect(self) -> list[Settlement]:
        """What finished since the last call."""
        # First this: a thread that finishes from now on wakes the loop again.
        self._told = False
        return drained(self._finished)

    def abandon(self, unwanted: Callable[[Slot, Call], bool]) -> list[tuple[Slot, Call]]:
        """Give up running calls and put new threads in their places; a thread cannot be stopped."""
        with self._changed:
            chosen = [
                (slot, call)
                for slot, call in list(self._running.items())
                if unwanted(slot, call) and self._running.pop(slot, None) is not None
            ]
            for slot, _ in chosen:
                slot.given_up = True
                self._on_given_up()
                _cancel(slot)
                self._members.discard(slot)
                self._awake -= 1
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

    def overdue_on_loop(self, now: float) -> list[Slot]:
        """Those over their time whose handlers are on the event loop, which may only be slow."""
        return [
            slot
            for slot in list(self._running)
            if slot.deadline <= now and slot.errand is not None and not slot.interrupted
        ]

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
        self._awake += 1
        slot.thread.start()

    def _run(self, slot: Slot) -> None:
        self._on_begun()
        waiting = self._ready.waiting
        while (claimed := self._take(slot)) is not None:
            settlement = self._work(slot, claimed)
            if slot.runs:
                slot.runs = False
                if self._running.pop(slot, None) is None:
                    with self._changed:  # the caller that gave it up has recorded that
                        self._on_returned()
                    return
            assert settlement is not None
            self._finished.append(settlement)
            if not self._told and (not waiting or len(self._finished) >= self.enough):
                self._told = True
                self._on_finished()

    def _take(self, slot: Slot) -> Claimed | None:
        """The next command, after waiting for one; None to end."""
        waiting = self._ready.waiting
        if len(self._members) <= self._size and self._awake <= self._awake_max:
            try:
                return waiting.popleft()
            except IndexError:
                pass
        slept = False
        with self._changed:
            self._awake -= 1
            while len(self._members) <= self._size:
                if self._awake < self._awake_max and waiting:
                    try:
                        claimed = waiting.popleft()
                    except IndexError:
                        continue
                    self._awake += 1
                    # One wakes the next: fast handlers leave most threads asleep, slow ones do not keep
                    # the others waiting, and a hundred never fight over a handful of commands.
                    if slept and waiting and self._awake < self._awake_max:
                        self._changed.notify()
                    return claimed
                slept = True
                self._changed.wait()
            self._members.discard(slot)
            return None


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
