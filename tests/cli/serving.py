"""A worker as a process of its own, for tests that watch it live and end."""

import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cli.helpers import PROGRAM, clean_environment


class Serving:
    """A worker process, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with suppress(ValueError):  # closed at the end, which a worker process may outlive
            for line in self.process.stderr:
                self._lines.put(line)

    def wait_for(self, words: str, times: int = 1) -> str:
        """The line with these words; fails when it does not come."""
        seen: list[str] = []
        while True:
            try:
                seen.append(self._lines.get(timeout=20))
            except queue.Empty:
                raise AssertionError(f"{words!r} was not said, only {seen}") from None
            if words in seen[-1]:
                times -= 1
                if times == 0:
                    return seen[-1]

    def signal(self) -> None:
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def serving(folder: Path, url: str, *arguments: str, **environment: str) -> Iterator[Serving]:
    """`commandbus worker` with these arguments, killed at the end."""
    with subprocess.Popen(
        [*PROGRAM, "worker", *arguments],
        cwd=folder,
        env=clean_environment() | {"COMMANDBUS_URL": url} | environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Serving(process)
        finally:
            process.kill()
