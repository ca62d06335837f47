"""Wake-ups inside a process: one waiter per event.

A wake-up is a hint, never a fact: a worker that is woken claims, and learns then. A waiter arms
itself *before* the claim that may come back empty, so a command that arrives in between is not missed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

logger = logging.getLogger("commandbus")

RECONNECT = "reconnect"
"""The source of a wake-up that follows when the store is reached again."""
WakeCallback = Callable[[str, float | None], None]
"""Called with the source of the wake-up and, for work that is not due yet, the seconds until then.
Called from any thread; must not block."""


class Waiter:
    """A worker's place in the hub."""

    __slots__ = ("armed", "callback", "domains")

    def __init__(self, domains: Iterable[str], callback: WakeCallback) -> None:
        self.domains = frozenset(domains)
        self.callback = callback
        self.armed = False


class WakeHub:
    """Who waits for what. Engines tell it what was committed, workers register with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[Waiter] = []
        self._observers: list[Callable[[], None]] = []
        self._subscribers: dict[str, list[Callable[[], object]]] = {}
        self._listened = threading.Event()
        self._interrupted = False

    def register(self, domains: Iterable[str], callback: WakeCallback) -> Waiter:
        waiter = Waiter(domains, callback)
        with self._lock:
            self._waiters.append(waiter)
        return waiter

    def unregister(self, waiter: Waiter) -> None:
        """Forget a waiter. If it was woken and leaves without claiming, another one is told."""
        with self._lock:
            self._waiters = [other for other in self._waiters if other is not waiter]
        for domain in sorted(waiter.domains):
            self.wake(domain, None, "chain")

    def arm(self, waiter: Waiter) -> None:
        """The waiter is about to claim and to wait: from now on it wants to be told."""
        with self._lock:
            waiter.armed = True
        self._listened.set()

    def wake(
        self,
        domain: str,
        due_in: float | None,
        source: str,
        *,
        besides: Waiter | None = None,
        everyone: bool = False,
    ) -> bool:
        """Wake one armed waiter of the domain, or `everyone`, `besides` the one who says so; news of a
        later due time goes to all of them, since each keeps its own timer. Returns whether anyone
        was told."""
        if not self._waiters and not self._subscribers:
            return False  # whoever comes now claims first
        chosen: list[Waiter] = []
        with self._lock:
            for position, waiter in enumerate(self._waiters):
                if not waiter.armed or domain not in waiter.domains or waiter is besides:
                    continue
                chosen.append(waiter)
                if due_in:
                    continue
                waiter.armed = False
                if not everyone:
                    # The next event goes to another one, so that all share the load.
                    self._waiters.append(self._waiters.pop(position))
                    break
            if not self._observers and not any(waiter.armed for waiter in self._waiters):
                self._listened_no_more()
            subscribers = tuple(self._subscribers.get(domain, ()))
        for waiter in chosen:
            _tell(waiter.callback, source, due_in or None)
        for subscriber in subscribers:
            _tell(subscriber)
        return bool(chosen or subscribers)

    def subscribe(self, topic: str, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back whenever a topic is woken in this process, all subscribers each time; returns
        how to stop. For services, which share a topic instead of competing for a domain."""
        with self._lock:
            self._subscribers.setdefault(topic, []).append(callback)

        def stop() -> None:
            with self._lock:
                self._subscribers[topic].remove(callback)

        return stop

    def wake_all(self, source: str) -> None:
        """Every waiter claims once: what tells it of work is "lost", or is there again after a
        "reconnect", and something may have been missed."""
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            _tell(waiter.callback, source, None)

    def armed_domains(self) -> set[str]:
        """The domains that someone in this process waits for right now."""
        with self._lock:
            return {name for waiter in self._waiters if waiter.armed for name in waiter.domains}

    def wait_until_listened(self) -> bool:
        """Block until someone waits for something: a watcher need not watch for the busy. Returns
        False when it was interrupted instead."""
        self._listened.wait()
        with self._lock:
            if self._observers or any(waiter.armed for waiter in self._waiters):
                return True
            self._listened_no_more()
            return False

    def _listened_no_more(self) -> None:
        if not self._interrupted:
            self._listened.clear()

    def interrupt(self) -> None:
        """Let a blocked watcher look around, because it is to stop; holds until `allow_watching`."""
        with self._lock:
            self._interrupted = True
            self._listened.set()

    def allow_watching(self) -> None:
        with self._lock:
            self._interrupted = False

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every commit in this process; returns how to stop. For those who wait for
        an outcome, and only look again then."""
        with self._lock:
            self._observers.append(callback)
        self._listened.set()

        def stop() -> None:
            with self._lock:
                self._observers.remove(callback)

        return stop

    def committed(self) -> None:
        """Something was committed in this process or seen to be committed by another."""
        if not self._observers:
            return  # whoever comes now looks first
        with self._lock:
            observers = tuple(self._observers)
        for callback in observers:
            _tell(callback)


def _tell(callback: Callable[..., object], *news: object) -> None:
    try:
        callback(*news)
    except Exception:  # whoever listens may be gone, its event loop closed; the commit stands
        logger.warning("a wake-up could not be delivered", exc_info=True)
