"""Supervision of a worker process: a watchdog, probes for an orchestrator, a heartbeat file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from commandbus.interfaces.cli import output
from commandbus.interfaces.cli.exits import CliError, Exit

if TYPE_CHECKING:
    from commandbus.worker.base import WorkerBase

S = TypeVar("S")
SIGN_SECONDS = 5.0
PATHS = ("/livez", "/readyz", "/startupz", "/metrics")
PORT_FILE = "COMMANDBUS_PROBE_PORT_FILE"
"""Where a worker process writes the port of its probes, for the process that looks after it."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """What was asked for."""

    probe_host: str
    probe_port: int | None
    heartbeat_file: Path | None
    watchdog: bool

    def checked(self) -> Supervision:
        """Itself, or CliError for what could not work."""
        if self.heartbeat_file is not None and not self.heartbeat_file.absolute().parent.is_dir():
            raise CliError(
                f"There is no folder for --heartbeat-file {self.heartbeat_file}.", Exit.USAGE
            )
        return self

    def of_process(self, index: int, processes: int) -> list[str]:
        """The same for one of so many processes, as arguments: each has probes on a free port, which
        its supervisor asks, and with several each has a file of its own."""
        one = replace(self, probe_host="127.0.0.1", probe_port=0 if self.is_probed else None)
        if self.heartbeat_file is not None and processes > 1:
            file = self.heartbeat_file
            one = replace(one, heartbeat_file=file.with_name(f"{file.name}.{index}"))
        return one._arguments()

    @property
    def is_probed(self) -> bool:
        """Whether a supervisor wants to know how its processes are."""
        return self.probe_port is not None or bool(os.environ.get("NOTIFY_SOCKET"))

    def bound(self, make: Callable[[], S]) -> S:
        """A server of probes, or CliError where its port cannot be had."""
        try:
            return make()
        except OSError as error:
            raise CliError(
                f"Probes cannot be served at {self.probe_host}:{self.probe_port}: {error.strerror}.",
                Exit.USAGE,
            ) from None

    def _arguments(self) -> list[str]:
        arguments = ["--watchdog" if self.watchdog else "--no-watchdog"]
        if self.probe_port is not None:
            arguments += ["--probe-host", self.probe_host, "--probe-port", str(self.probe_port)]
        if self.heartbeat_file is not None:
            arguments += ["--heartbeat-file", str(self.heartbeat_file)]
        return arguments

    @contextmanager
    def around(self, worker: WorkerBase) -> Iterator[None]:
        """Look after a worker while it runs. Leaving may take a moment and blocks."""
        from commandbus.runtimes.probes import SignsOfLife
        from commandbus.runtimes.watchdog import WorkerWatchdog

        with ExitStack() as stack:
            if self.probe_port is not None:
                self._serve_probes(worker, stack)
            if self.heartbeat_file is not None or os.environ.get("NOTIFY_SOCKET"):
                signs = SignsOfLife(worker, file=self.heartbeat_file, interval=sign_seconds())
                stack.enter_context(signs)
            if self.watchdog:
                stack.enter_context(WorkerWatchdog(worker))
            yield

    def _serve_probes(self, worker: WorkerBase, stack: ExitStack) -> None:
        from commandbus.runtimes.probes import ProbeServer

        server = self.bound(
            lambda: ProbeServer(worker, host=self.probe_host, port=self.probe_port or 0)
        )
        stack.enter_context(server)
        port_file = os.environ.pop(PORT_FILE, None)
        if port_file is None:  # a process that only follows the code looks after this one
            output.done(f"probes at http://{self.probe_host}:{server.port}: {' '.join(PATHS)}")
            return
        written = Path(f"{port_file}.new")
        written.write_text(str(server.port), encoding="ascii")
        written.replace(port_file)  # never half a number


def sign_seconds() -> float:
    """How often to give a sign of life: twice in the time that systemd waits for one."""
    try:
        return min(SIGN_SECONDS, max(0.01, int(os.environ["WATCHDOG_USEC"]) / 2e6))
    except (KeyError, ValueError):  # not under systemd's watch
        return SIGN_SECONDS
