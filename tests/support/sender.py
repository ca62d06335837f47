"""A sender that does not give up: every command under an id of its own, until its fate is known."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

from commandbus.errors import DuplicateCommandError, StoreUnavailable
from commandbus.sync import SyncCommandBus
from tests.support.working import DOMAIN


class StubbornSender:
    """Sends from a thread of its own until the end of the block; `acknowledged` says what must not be
    lost."""

    def __init__(self, url: str, pause: float = 0.002) -> None:
        self.acknowledged: list[UUID] = []
        self.unknown = 0
        """Sends that ended without an answer, and were repeated."""
        self._pause = pause
        self._bus = SyncCommandBus(url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._bus.open()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._bus.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a send hangs"

    def _run(self) -> None:
        while not self._stop.is_set():
            self._send(uuid4())
            time.sleep(self._pause)

    def _send(self, command_id: UUID) -> None:
        while True:
            try:
                self._bus.send(DOMAIN, "ship", command_id=command_id)
            except DuplicateCommandError:
                break
            except StoreUnavailable:
                self.unknown += 1
                time.sleep(0.05)
            else:
                break
        self.acknowledged.append(command_id)
