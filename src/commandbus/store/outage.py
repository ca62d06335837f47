"""A store that is away: logged once when it went and once when it is back, by one of all threads."""

from __future__ import annotations

import logging
import threading
import time

from commandbus.errors import PoolExhausted, StoreUnavailable

logger = logging.getLogger("commandbus.store")


SAME_SECONDS = 5.0
"""What fails so soon after the store was back may have been on its way meanwhile: a shorter outage
hides the longer one before it only after this time."""


class Outage:
    """What this process knows about one store."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._last = 0.0, 0.0
        """From when to when it was away the last time."""
        self._lock = threading.Lock()

    def failed(self, what: str, error: BaseException, log: logging.Logger) -> None:
        """Log a failure that is tried again. That the store is away is logged once."""
        if not isinstance(error, StoreUnavailable) or isinstance(error, PoolExhausted):
            log.warning("%s failed, trying again: %s", what, error)
            return
        with self._lock:
            begins, self.since = self.since is None, self.since or time.monotonic()
        if begins:
            logger.warning("the store is away, trying again until it is back: %s", error)
        else:
            log.debug("%s failed, trying again: %s", what, error)

    def answered(self) -> None:
        """The store did what it was asked."""
        if self.since is None:  # nearly always, and without the lock
            return
        with self._lock:
            began, now = self.since, time.monotonic()
            if began is None:
                return
            last_began, last_ended = self._last
            if began >= last_ended + SAME_SECONDS or now - began >= last_ended - last_began:
                self._last = began, now
            self.since = None  # after that: `lasted` looks without the lock
        logger.warning("the store is back after %.1f s", time.monotonic() - began)

    def lasted(self, seconds: float, ago: float) -> bool:
        """Whether the store was away for so long, and still is, or was less than `ago` seconds ago."""
        now, since = time.monotonic(), self.since
        spans = [self._last] if since is None else [self._last, (since, now)]
        return any(ended - began >= seconds and now < ended + ago for began, ended in spans)


_known: dict[str, Outage] = {}
_lock = threading.Lock()


def outage_of(url: str) -> Outage:
    """That of a store, shared by all workers of this process."""
    with _lock:
        return _known.setdefault(url, Outage())
