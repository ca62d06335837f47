"""Wake-ups inside a process: one waiter per event.

A wake-up is a hint, never a fact: a worker that is woken claims, and learns then. A waiter arms
itself *before* the claim that may come back empty, so a command that arrives in between is not missed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from commandbus.store.op import Log, Wake

logger = logging.getLogger("commandbus")

WAKEUP_SOURCES = ("notify", "bell", "watch", "chain", "timer", "fallback", "lost", "lease", "reconnect")
RECONNECT = "reconnect"
"""The source of a wake-up that follows when the store is reached again."""
WakeCallback = Callable[[str, float | None], None]
"""Called with the source of the wake-up and, for work that is not due yet, the seconds until then.
Called from any thread; must not block."""
SleepSign = Callable[[Iterable[frozenset[str]], bool], None]
"""Called with the domains of the armed waiters, and whether every commit is listened to, each time that
these may have changed. Called under the lock of the hub; must be quick."""


TIMER_SPREAD = 0.05
"""Workers learn of one due time at slightly different moments, so their timers differ by this much."""


class Waiter:
    """A worker's registration with the hub."""

    __slots__ = ("armed", "callback", "domains", "tags")

    def __init__(
        self, domains: Iterable[str], callback: WakeCallback, tags: Iterable[str] = ()
    ) -> None:
        self.domains = frozenset(domains)
        self.tags = frozenset(tags)
        self.callback = callback
        self.armed = False


class WakeHub:
    """Delivers wake-ups inside a process. Engines report commits to it, workers register with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[Waiter] = []
        self._observers: list[Callable[[], None]] = []
        self._subscribers: dict[str, list[Callable[[], object]]] = {}
        self._listened = threading.Event()
        self._interrupted = False
        self._sleep_sign: SleepSign | None = None
        self._timer_turns: dict[tuple[frozenset[str], frozenset[str]], tuple[Waiter, float]] = {}

    def register(
        self, domains: Iterable[str], callback: WakeCallback, tags: Iterable[str] = ()
    ) -> Waiter:
        waiter = Waiter(domains, callback, tags)
        with self._lock:
            self._waiters.append(waiter)
        return waiter

    def unregister(self, waiter: Waiter) -> None:
        """Forget a waiter. If it was woken and leaves without claiming, another one is woken."""
        with self._lock:
            self._waiters = [other for other in self._waiters if other is not waiter]
            self._timer_turns.pop((waiter.domains, waiter.tags), None)
            self._check_listened()
        for domain in sorted(waiter.domains):
            self.wake(domain, None, "chain")

    def arm(self, waiter: Waiter) -> None:
        """The waiter is about to claim: from now on it may get events, until it is disarmed."""
        with self._lock:
            waiter.armed = True
            if self._sleep_sign is not None:
                self._check_listened()
        self._listened.set()

    def disarm(self, waiter: Waiter) -> None:
        """The waiter's claim found work: it claims again without an event, so events go to others."""
        with self._lock:
            waiter.armed = False
            self._check_listened()

    def take_timer_turn(self, waiter: Waiter, due_at: float, now: float) -> bool:
        """Whether this waiter claims for a timer that has expired. Of the waiters with the same domains
        and tags the first one does: it goes on until nothing is due, and then keeps the next timer, or
        its slots are full, and then it wakes the next waiter."""
        kind = waiter.domains, waiter.tags
        with self._lock:
            leader, claimed_at = self._timer_turns.get(kind, (waiter, now))
            if leader is not waiter and claimed_at >= due_at - TIMER_SPREAD:
                return False
            self._timer_turns[kind] = waiter, now
            return True

    def after_commit(self, wakes: Iterable[Wake | Log], *, read: bool = False) -> list[Wake]:
        """An op of this process was committed: wake those for whom it has work, and let waits for
        outcomes look, unless it was a read. Returns the wake-ups for which nothing waits here."""
        unheard = []
        for each in wakes:
            if isinstance(each, Wake):
                if not self.wake(each.domain, each.due_in, "notify", everyone=each.everyone):
                    unheard.append(each)
            else:
                logging.getLogger(each.logger).info("%s", each.line)
        if not read:
            self.committed()
        return unheard

    def wake(
        self,
        domain: str,
        due_in: float | None,
        source: str,
        *,
        besides: Waiter | None = None,
        everyone: bool = False,
    ) -> bool:
        """Wake one armed waiter of the domain, or `everyone`, `besides` the caller. A later due time
        goes to all waiters, armed or not: idle ones set their timers, busy ones promote in time.
        Returns whether any waiter was called."""
        if not self._waiters and not self._subscribers:
            return False  # a waiter that comes now claims first
        chosen: list[Waiter] = []
        with self._lock:
            for position, waiter in enumerate(self._waiters):
                if domain not in waiter.domains or waiter is besides:
                    continue
                if due_in:
                    chosen.append(waiter)
                    continue
                if not waiter.armed:
                    continue
                chosen.append(waiter)
                waiter.armed = False
                if not everyone:
                    # The next event goes to another one, so that all share the load.
                    self._waiters.append(self._waiters.pop(position))
                    break
            self._check_listened()
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

    def wake_services(self) -> None:
        """Call all subscribers once: wake-ups reach them again, so from now on they may rest longer."""
        with self._lock:
            subscribers = [each for topic in self._subscribers.values() for each in topic]
        for subscriber in subscribers:
            _tell(subscriber)

    def armed_domains(self) -> set[str]:
        """The domains of the armed waiters of this process."""
        with self._lock:
            return {name for waiter in self._waiters if waiter.armed for name in waiter.domains}

    def wait_until_listened(self, timeout: float | None = None) -> bool:
        """Block until a waiter or an observer waits for events: a watcher has nothing to do for busy
        workers. Returns False when it was interrupted instead, or after `timeout` seconds."""
        self._listened.wait(timeout)
        with self._lock:
            return self._check_listened()

    def _check_listened(self) -> bool:
        """Whether any waiter or observer waits for events; stops the watcher where none does."""
        listened = bool(self._observers) or any(waiter.armed for waiter in self._waiters)
        if self._sleep_sign is not None:
            armed = [waiter.domains for waiter in self._waiters if waiter.armed]
            self._sleep_sign(armed, bool(self._observers))
        if not listened and not self._interrupted:
            self._listened.clear()
        return listened

    def sign_sleep(self, sign: SleepSign | None) -> None:
        """Call `sign` with what this process waits for: now, and each time that it may have changed."""
        with self._lock:
            self._sleep_sign = sign
            self._check_listened()

    def renew_sleep(self) -> None:
        """Call the sign again: a ring takes it away."""
        with self._lock:
            self._check_listened()

    def interrupt(self) -> None:
        """Let a blocked watcher look around, because it is to stop; holds until `allow_watching`."""
        with self._lock:
            self._interrupted = True
            self._listened.set()

    def allow_watching(self) -> None:
        with self._lock:
            self._interrupted = False

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every commit in this process; returns how to stop. For calls that
        wait for an outcome, and read it again after each commit."""
        with self._lock:
            self._observers.append(callback)
            self._check_listened()
        self._listened.set()

        def stop() -> None:
            with self._lock:
                self._observers.remove(callback)
                self._check_listened()

        return stop

    def committed(self) -> None:
        """Something was committed in this process or seen to be committed by another."""
        if not self._observers:
            return  # a waiter that comes now looks first
        with self._lock:
            observers = tuple(self._observers)
        for callback in observers:
            _tell(callback)


def _tell(callback: Callable[..., object], *news: object) -> None:
    try:
        callback(*news)
    except Exception:  # the listener may be gone, its event loop closed; the commit stands
        logger.warning("a wake-up could not be delivered", exc_info=True)
