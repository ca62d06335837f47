"""Notices when the event loop is blocked, and says by what.

A handler that blocks the loop blocks all others, and nothing on the loop can tell. So a thread asks the
loop for an answer from time to time while handlers run; when none comes, it looks at the stack of the
loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable

import msgspec

logger = logging.getLogger("commandbus.worker")

STALL_SECONDS = 1.0
"""A loop that does not answer for this long counts as blocked."""


class LoopStall(msgspec.Struct, frozen=True):
    """One time that the loop was blocked: where it was, innermost frame last."""

    frame: str
    stack: str


class StallMonitor:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        busy: Callable[[], bool],
        stalled: Callable[[LoopStall], None],
    ) -> None:
        self._loop = loop
        self._busy = busy
        self._stalled = stalled
        self._loop_thread = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commandbus-stalls", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(STALL_SECONDS):
            if not self._busy():
                continue
            answered = threading.Event()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop was closed meanwhile
                return
            if answered.wait(STALL_SECONDS) or self._stop.is_set():
                continue
            self._report()
            # One report for each time that it is blocked, however long.
            while not answered.wait(STALL_SECONDS) and not self._stop.is_set():
                pass

    def _report(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return
        summary = traceback.extract_stack(frame)
        where = next((f for f in reversed(summary) if "/asyncio/" not in f.filename), summary[-1])
        stall = LoopStall(
            frame=f"{where.filename}:{where.lineno} in {where.name}",
            stack="".join(traceback.format_list(summary)),
        )
        logger.warning(
            "the event loop has been blocked for %.1f s by %s\n%s",
            STALL_SECONDS,
            stall.frame,
            stall.stack,
        )
        self._stalled(stall)
