"""A store that is away: logged once when it went and once when it is back, by one of all threads."""

from __future__ import annotations

import logging
import threading
import time

from commandbus.errors import PoolExhausted, StoreUnavailable

logger = logging.getLogger("commandbus.store")


class Outage:
    """What this process knows about one store."""

    def __init__(self) -> None:
        self.since: float | None = None
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
            began, self.since = self.since, None
        if began is not None:
            logger.warning("the store is back after %.1f s", time.monotonic() - began)


_known: dict[str, Outage] = {}
_lock = threading.Lock()


def outage_of(url: str) -> Outage:
    """That of a store, shared by all workers of this process."""
    with _lock:
        return _known.setdefault(url, Outage())
