"""A worker that follows changes of the code: for `dev`, and for `worker --reload`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from commandbus.interfaces.cli import output

LOOK_SECONDS = 0.5
STOP_SECONDS = 10.0
"""How long a worker may take to end after its drain, before it is killed."""
SKIPPED = {"__pycache__", "node_modules", "site-packages"}


def stamps(folder: Path) -> dict[str, float]:
    """When each Python file below a folder was changed."""
    return {str(path): path.stat().st_mtime for path in _python_files(folder) if path.exists()}


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in SKIPPED and not f.startswith(".")]
        yield from (Path(root, file) for file in files if file.endswith(".py"))


class WorkerProcess:
    """A worker in a process of its own, so that fresh code is all it knows."""

    def __init__(self, arguments: Sequence[str], url: str, patience: float) -> None:
        self._arguments = arguments
        self._patience = patience
        # Not on the command line, where everyone on the machine could read a password in it.
        self._environment = {"COMMANDBUS_URL": url}
        self._process: subprocess.Popen[bytes] | None = None
        self._dismissed = False

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def start(self) -> None:
        from commandbus.interfaces.cli.signals import SUPERVISOR

        if self._dismissed:
            return
        # A group of its own: Ctrl-C reaches this process, which then lets the worker drain.
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "commandbus", *self._arguments],
            env={**os.environ, **self._environment, SUPERVISOR: str(os.getpid())},
            start_new_session=True,
        )
        if self._dismissed:  # while it was being started
            self._send(signal.SIGTERM)

    def stop(self) -> None:
        """Drain; a worker that does not end in time is killed."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + self._patience
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
        process.wait()

    def end(self) -> None:
        """Drain and do not restart; Ctrl-C ends it at once."""
        self._dismissed = True
        if not self.has_ended:
            output.note("the worker finishes what it runs; Ctrl-C ends it at once")
        try:
            self.stop()
        except KeyboardInterrupt:
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def dismiss(self, number: int) -> None:
        """Pass on a signal that ends the worker without a restart."""
        self._dismissed = True
        self._send(number)

    def _send(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self) -> int:
        """How it ended."""
        return 0 if self._process is None else self._process.wait()


class Follower:
    """Restarts a worker when code below the current folder changes, also when it has ended."""

    def __init__(self, worker: WorkerProcess, reload: bool = True) -> None:
        self._worker = worker
        self._reload = reload
        self._seen = stamps(Path.cwd())
        self._told = False

    def look(self) -> None:
        now = stamps(Path.cwd()) if self._reload else self._seen
        if now != self._seen:
            changed = min({*now.items()} ^ {*self._seen.items()})[0]
            self._seen, self._told = now, False
            output.note(f"{Path(changed).name} changed: restarting the worker")
            self._worker.stop()
            self._worker.start()
        elif self._worker.has_ended and not self._told:
            self._told = True
            output.warn("the worker has ended; it starts again when the code changes")


def follow(worker: WorkerProcess) -> int:
    """Run a worker that follows the code until a signal comes, which is passed on, as are the next. The
    exit code of the worker."""
    stopping = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stopping.set()
        worker.dismiss(number)

    follower = Follower(worker)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    worker.start()
    while not stopping.wait(LOOK_SECONDS):
        follower.look()
    return worker.wait()
