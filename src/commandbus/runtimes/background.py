"""Workers and routers that run in the background of a `with` block, in both runtimes."""

from __future__ import annotations

import logging
from typing import Protocol

logger = logging.getLogger("commandbus.worker")


class Event(Protocol):
    def set(self) -> None: ...


class BackgroundBase:
    _begun: Event | None = None

    def _has_begun(self) -> None:
        """The start has succeeded: from now on only the end is waited for."""
        if self._begun is not None:
            self._begun.set()


def raise_first(error: BaseException | None, failure: BaseException | None) -> None:
    """At the end of a block: the block's own `error` wins over the `failure` of what ran behind it."""
    if failure is None:
        return
    if error is None:
        raise failure
    logger.error("ended before its block raised", exc_info=failure)
