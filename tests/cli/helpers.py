"""Running the command line, inside this process and as a process of its own."""

import json
import os
import pty
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from commandbus import PermanentCommandError
from commandbus.interfaces.cli.app import app
from commandbus.sync import SyncCommandBus, SyncWorker

PROGRAM = [sys.executable, "-m", "commandbus"]


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The output as TSV, without its heading."""
        return [line.split("\t") for line in self.out.splitlines()[1:]]

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Calls commands inside this process."""

    def __call__(self, *arguments: str, code: int | None = 0, stdin: str | None = None) -> Ran:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if code is not None:
            assert result.exit_code == code, f"{arguments}: {result.output}"
        return Ran(result.exit_code, result.stdout, result.stderr)


def run(*arguments: str, folder: Path, timeout: float = 60, **environment: str) -> Ran:
    """Run the command line as a process, with pipes."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def run_on_terminal(*arguments: str, folder: Path, columns: int, timeout: float = 60) -> Ran:
    """Run the command line as a process that sees a terminal of `columns` columns."""
    ours, theirs = pty.openpty()
    environment = clean_environment() | {"TERM": "xterm-256color", "COLUMNS": str(columns)}
    received: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                received.append(data)
        except OSError:  # the other side is closed
            return

    reader = threading.Thread(target=read, daemon=True)
    with subprocess.Popen(
        [*PROGRAM, *arguments], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        reader.start()
        code = process.wait(timeout)
        reader.join(30)
    os.close(ours)
    return Ran(code, b"".join(received).decode(), "")


def clean_environment() -> dict[str, str]:
    left_out = {"COMMANDBUS_URL", "COMMANDBUS_APP", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"}
    kept = {key: value for key, value in os.environ.items() if key not in left_out}
    return kept | {"XDG_CONFIG_HOME": os.devnull}  # no context of the user is in use


def park(
    bus: SyncCommandBus,
    command_type: str = "Buy",
    code: str = "BROKEN",
    message: str = "it is broken",
    *,
    domain: str = "shop",
    data: Any = None,
    **fields: Any,
) -> str:
    """A command in the troubleshooting queue."""
    sent = bus.send(domain, command_type, data, **fields)
    worker = SyncWorker(bus, domain)
    (received,) = worker.receive()
    worker.fail(received, PermanentCommandError(code, message))
    return str(sent.command_id)


def finish(bus: SyncCommandBus, result: Any = None, *, domain: str = "shop") -> str:
    """A completed command."""
    sent = bus.send(domain, "Buy", {"amount": 1})
    worker = SyncWorker(bus, domain)
    (received,) = worker.receive()
    worker.complete(received, result)
    return str(sent.command_id)
