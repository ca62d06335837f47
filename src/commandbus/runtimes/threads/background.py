"""`with`: a worker or router runs in a thread of its own while the block runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from commandbus.domain.moment import Duration
from commandbus.runtimes.background import BackgroundBase, raise_first


class Background(BackgroundBase, ABC):
    """`with worker:` runs it until the block ends, and stops it then. An error of its start is raised
    at the beginning of the block; one that ended it meanwhile at the end, unless the block raised one
    itself."""

    _end: Future[None] | None = None

    @abstractmethod
    def run(self) -> None: ...

    @abstractmethod
    def stop(self, timeout: Duration | None = None) -> None: ...

    def __enter__(self) -> Self:
        self._begun, self._end = begun, end = threading.Event(), Future[None]()
        end.add_done_callback(lambda _: begun.set())

        def run() -> None:
            try:
                end.set_result(self.run())
            except BaseException as error:  # the thread of the block raises it
                end.set_exception(error)

        threading.Thread(target=run, name="commandbus-background", daemon=True).start()
        try:
            begun.wait()
        except KeyboardInterrupt:
            self.stop()
            raise
        if end.done():
            end.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end, self._end, self._begun = self._end, None, None
        assert end is not None
        if not end.done():
            self.stop()
        raise_first(error, end.exception())
