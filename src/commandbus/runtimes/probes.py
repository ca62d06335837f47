"""Probes: small HTTP answers about a worker, for orchestrators; and signs of life for supervisors.

`/livez` says whether the loops advance and never asks the store: a database that is down must not
make an orchestrator restart a fleet. `/readyz` says whether the worker can do its work: store writable,
schema right, loop advancing, not draining. `/startupz` says whether it has begun, and `/metrics` is for
Prometheus.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from commandbus.domain.moment import Duration, as_seconds
from commandbus.errors import CommandBusError
from commandbus.observe.commands import CommandFigures
from commandbus.observe.exposition import CONTENT_TYPE, render
from commandbus.runtimes.small_http import Response, SmallServer
from commandbus.worker.base import WorkerBase
from commandbus.worker.readiness import ANSWER_SECONDS

logger = logging.getLogger("commandbus.probes")

Answer = tuple[bool, dict[str, Any]]

READY_SECONDS = 1.0
"""What the store said holds for so long: requests must not load it."""


def livez(worker: WorkerBase) -> Answer:
    """The loops advance."""
    alive = worker.ping(timeout=2.0)
    return alive, {"live": alive, "health": worker.health_status.to_dict()}


def readyz(worker: WorkerBase, max_age: float = 0.0) -> Answer:
    """The worker can take work now. Answered within two seconds, whatever the store does; what it said
    holds for `max_age` seconds."""
    problems: list[str] = []
    until, store = time.monotonic() + ANSWER_SECONDS, worker.ask_store(max_age)
    if not worker.is_running:
        problems.append("the worker is not running")
    elif worker.is_stopping:
        problems.append("the worker is draining")
    elif not worker.ping(timeout=ANSWER_SECONDS):
        problems.append("the worker's loop does not advance")
    try:
        store.wait(max(0.0, until - time.monotonic()))
    except CommandBusError as error:
        problems.append(str(error))
    health = worker.health_status
    warning = health.impairment()
    warnings = [] if warning is None else [warning]
    for name, router in list(health.routers.items()):
        warnings += [f"{name}: {reason}" for reason in router.reasons if reason != warning]
    return not problems, {"ready": not problems, "problems": problems, "warnings": warnings}


def startupz(worker: WorkerBase) -> Answer:
    """The worker has begun its loop."""
    return worker.is_running, {"started": worker.is_running}


class ProbeServer:
    """Serves the probes of a worker on a port, from threads of its own."""

    def __init__(self, worker: WorkerBase, *, host: str = "127.0.0.1", port: int = 0) -> None:
        if worker.observer is None:
            worker.observer = CommandFigures()
        routes: dict[str, Callable[[], Response]] = {
            "/livez": lambda: _response(livez(worker)),
            "/readyz": lambda: _response(readyz(worker, READY_SECONDS)),
            "/startupz": lambda: _response(startupz(worker)),
            "/metrics": lambda: (200, CONTENT_TYPE, render(worker)),
        }
        unknown = json.dumps({"error": f"try {', '.join(routes)}"})
        self._server = SmallServer(host, port, routes, (404, "application/json", unknown))

    @property
    def port(self) -> int:
        return self._server.port

    def start(self) -> None:
        """Answer from now on, in a thread."""
        self._server.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _response(answer: Answer) -> Response:
    good, body = answer
    return 200 if good else 503, "application/json", json.dumps(body)


class SignsOfLife:
    """Tells a supervisor that a worker lives, as long as its loop answers: by touching a file, and by
    systemd's notifications where systemd asks for them."""

    def __init__(
        self, worker: WorkerBase, *, file: str | Path | None = None, interval: Duration = 5.0
    ) -> None:
        self._worker = worker
        self._file = None if file is None else Path(file)
        self._interval = as_seconds(interval, "interval", minimum=0.01)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commandbus-signs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        notify_systemd("STOPPING=1")
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        ready = False
        while True:
            if self._worker.ping(timeout=self._interval):
                if not ready:
                    ready = notify_systemd("READY=1") or True
                notify_systemd("WATCHDOG=1")
                self._touch()
            if self._stop.wait(self._interval if ready else min(0.1, self._interval)):
                return

    def _touch(self) -> None:
        if self._file is None:
            return
        # Not through a symbolic link, which another user could have put there.
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            file = os.open(self._file, flags, 0o644)
            try:
                os.utime(file)
            finally:
                os.close(file)
        except OSError as error:  # a full disk, say; it may pass, and systemd is still to be notified
            logger.warning("the heartbeat file %s cannot be touched: %s", self._file, error)


def notify_systemd(state: str) -> bool:
    """Send a state to systemd; False where no systemd listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError as error:
            logger.warning("systemd cannot be notified of %s: %s", state, error)
            return False
    return True
