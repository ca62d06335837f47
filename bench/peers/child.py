"""A driver's process, seen from the harness: what it prints, its memory and its end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

PAGE_MB = 1 / 1024
PATIENCE_SECONDS = 30.0


class DriverFailed(RuntimeError):  # noqa: N818 - what happened, as the page reports it
    """A driver ended, or said nothing for too long; with the end of what it complained about."""


class Child:
    """One driver with one task."""

    def __init__(
        self, command: Sequence[str], task: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.pid = 0
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._complaints: list[str] = []
        self._process = subprocess.Popen(
            [*command, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # An installed program is compiled; else what a worker imports late is compiled in a drain.
            env={**os.environ, **environment, "PYTHONDONTWRITEBYTECODE": ""},
            start_new_session=True,  # so that what it starts ends with it
        )
        self.pid = self._process.pid
        self._readers = [
            threading.Thread(target=target, daemon=True) for target in (self._listen, self._collect)
        ]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                event = json.loads(line)
                if isinstance(event, dict):
                    self._events.put(event)
        self._events.put(None)

    def _collect(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._complaints = [*self._complaints[-30:], line.rstrip()]

    def next(self, seconds: float) -> dict[str, Any] | None:
        """Its next event, or None when there was none within `seconds`."""
        try:
            event = self._events.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        if event is None:
            self._process.wait(5)
            raise DriverFailed(self.complaint() or f"ended with status {self._process.returncode}")
        return event

    def wait_for(self, key: str, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The first event that has `key`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            event = self.next(left)
            if event is not None and key in event:
                return event
        raise DriverFailed(f"no {key!r} within {seconds:g} s. {self.complaint()}".strip())

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def complaint(self) -> str:
        """The last line that looks like an error, else the last line."""
        lines = [line for line in self._complaints if line.strip()]
        errors = [line for line in lines if "Error" in line or "rror:" in line]
        return (errors or lines or [""])[-1].strip()[:300]

    def peak_megabytes(self) -> float:
        """The most memory that it and its children had resident, each at its own peak."""
        return sum(_status(pid, "VmHWM") for pid in family(self.pid)) * PAGE_MB

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(10)
        for reader in self._readers:
            reader.join(5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                yield from family(int(child))


def _status(pid: int, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
    return 0


def cpu_seconds(pid: int) -> float:
    """What a process, its ended children and those that run have used."""
    ticks = 0
    for one in family(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11 : 15 if one == pid else 13])
    return ticks / os.sysconf("SC_CLK_TCK")
