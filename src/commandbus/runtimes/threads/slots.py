"""The slots of the thread runtime: named threads that take one command after another."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from commandbus.runtimes.threads.loop import Errand
from commandbus.store.records import Claimed, Settlement
from commandbus.worker.base import split_by_lease
from commandbus.worker.execution import Call


class Slot:
    """A thread's place. Once abandoned, whatever its thread still does is ignored."""

    __slots__ = ("abandoned", "began", "call", "deadline", "errand", "thread")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.began = 0.0
        self.deadline: float | None = None
        self.abandoned = False
        self.errand: Errand | None = None
        """Its handler on the loop, if that is an `async def` one."""
        self.thread: threading.Thread | None = None


class Slots:
    """As many threads as handlers may run at once, and the commands that wait for them."""

    def __init__(
        self,
        name: str,
        work: Callable[[Slot, Claimed], Settlement],
        *,
        finished: Callable[[], None],
        returned: Callable[[], None],
    ) -> None:
        self._name = name
        self._work = work
        self._on_finished = finished
        self._on_returned = returned
        self._finished: list[Settlement] = []
        self._size = 0
        self._count = 0
        self._ready: deque[Claimed] = deque()
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
        with self._changed:
            self._ready.extend(claimed)
            self._changed.notify()

    def withdraw(self, lease_ids: frozenset[int] | None) -> list[Claimed]:
        """Take back what no thread has begun."""
        with self._changed:
            taken, kept = split_by_lease(self._ready, lease_ids)
            self._ready = deque(kept)
            return taken

    def collect(self) -> list[Settlement]:
        """What finished since the last call."""
        with self._changed:
            finished, self._finished = self._finished, []
            return finished

    def abandon(self, unwanted: Callable[[Slot, Call], bool]) -> list[tuple[Slot, Call]]:
        """Give up running calls and put new threads in their places; a thread cannot be stopped."""
        with self._changed:
            chosen = [
                (slot, slot.call)
                for slot in self._members
                if slot.call is not None and unwanted(slot, slot.call)
            ]
            for slot, _ in chosen:
                slot.abandoned = True
                if slot.errand is not None:
                    slot.errand.cancel()
                self._members.discard(slot)
                if len(self._members) < self._size:
                    self._spawn()
            return chosen

    def stop_calls(self, seqs: frozenset[int]) -> None:
        """Ask those to stop that can be asked; `def` handlers look for themselves."""
        with self._changed:
            for slot in self._members:
                if slot.errand is not None and slot.call and slot.call.claimed.seq in seqs:
                    slot.errand.cancel()

    def next_deadline(self) -> float | None:
        with self._changed:
            moments = [s.deadline for s in self._members if s.call and s.deadline is not None]
            return min(moments, default=None)

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
        claimed = self._take(slot, None)
        while claimed is not None:
            claimed = self._take(slot, self._work(slot, claimed))

    def _take(self, slot: Slot, settlement: Settlement | None) -> Claimed | None:
        """Hand in what the last run amounted to and wait for the next command, or None to end.

        One lock decides between finishing and being abandoned, so a run ends exactly once.
        """
        with self._changed:
            slot.call = slot.deadline = None
            if slot.abandoned:
                self._on_returned()
            elif settlement is not None:
                self._finished.append(settlement)
                if len(self._finished) == 1:
                    self._on_finished()
            woken = False
            while True:
                if slot.abandoned or len(self._members) > self._size:
                    self._members.discard(slot)
                    return None
                if self._ready:
                    claimed = self._ready.popleft()
                    # One wakes the next: fast handlers leave most threads asleep, slow ones do not
                    # keep the others waiting, and a hundred never fight over a handful of commands.
                    if woken and self._ready:
                        self._changed.notify()
                    return claimed
                woken = True
                self._changed.wait()
