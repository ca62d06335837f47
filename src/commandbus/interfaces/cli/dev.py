"""`dev`: store, worker and dashboard with one command; the worker follows changes of the code."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from commandbus.interfaces.cli import options, output, target
from commandbus.interfaces.cli.dashboard import Host, Port, need_web

LOOK_SECONDS = 0.5
STOP_SECONDS = 10.0
SKIPPED = {"__pycache__", "node_modules", "site-packages"}


def dev(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="APP",
            help="module:registry, or a module that holds one.",
            show_default="COMMANDBUS_APP",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8_080,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Handlers that run at once.")
    ] = 4,
    reload: Annotated[
        bool, typer.Option("--reload/--no-reload", help="Start the worker anew when code changes.")
    ] = True,
    url: options.Url = None,
) -> None:
    """Run everything that development needs: the store, a worker and the dashboard.

    The store is created when it is not there. The worker is started anew whenever a Python file below
    the current folder changes; running handlers finish first.
    """
    need_web()
    from commandbus.errors import ConfigurationError
    from commandbus.interfaces.cli.apps import load_registry
    from commandbus.interfaces.cli.exits import CliError, Exit
    from commandbus.interfaces.web import create_dashboard
    from commandbus.interfaces.web.serving import bind, check_host, create_server

    name, store = target.find_app(app), target.find_url(url)
    registry = load_registry(name)
    with target.opened(store, create=True):
        pass
    try:
        check_host(host, has_accounts=False)
        listener = bind(host, port)
    except ConfigurationError as error:
        raise CliError(str(error), Exit.USAGE) from error
    arguments = ["worker", name, "--concurrency", str(concurrency)]
    output.done(f"store      {target.shown_url(store)}")
    output.done(f"dashboard  http://{host}:{listener.getsockname()[1]}/")
    board = create_dashboard(store, registry=registry)
    with suppress(KeyboardInterrupt):  # the ordinary end
        asyncio.run(_serve(create_server(board), listener, WorkerProcess(arguments, store), reload))


async def _serve(server: object, listener: object, worker: WorkerProcess, reload: bool) -> None:
    """The dashboard here, the worker in a process of its own, until Ctrl-C."""
    worker.start()
    minding = asyncio.create_task(_mind(worker, reload))
    try:
        await server.serve(sockets=[listener])  # type: ignore[attr-defined]
    finally:
        minding.cancel()
        await asyncio.to_thread(worker.stop)


async def _mind(worker: WorkerProcess, reload: bool) -> None:
    """Start the worker anew when code changes, also after it ended by itself."""
    seen = stamps(Path.cwd())
    told = False
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = await asyncio.to_thread(stamps, Path.cwd()) if reload else seen
        if now != seen:
            changed = min({*now.items()} ^ {*seen.items()})[0]
            seen, told = now, False
            output.note(f"{Path(changed).name} changed: starting the worker anew")
            await asyncio.to_thread(worker.stop)
            worker.start()
        elif worker.has_ended and not told:
            told = True
            output.warn("the worker has ended; it starts again when the code changes")


def stamps(folder: Path) -> dict[str, float]:
    """When each Python file below a folder was changed."""
    return {str(path): path.stat().st_mtime for path in _python_files(folder) if path.exists()}


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in SKIPPED and not f.startswith(".")]
        yield from (Path(root, file) for file in files if file.endswith(".py"))


class WorkerProcess:
    """A worker in a process of its own, so that fresh code is all it knows."""

    def __init__(self, arguments: list[str], url: str) -> None:
        self._arguments = arguments
        # Not on the command line, where everyone on the machine could read a password in it.
        self._environment = {"COMMANDBUS_URL": url}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def start(self) -> None:
        from commandbus.interfaces.cli.signals import SUPERVISOR

        # A group of its own: Ctrl-C reaches this process, which then lets the worker drain.
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "commandbus", *self._arguments],
            env={**os.environ, **self._environment, SUPERVISOR: str(os.getpid())},
            start_new_session=True,
        )

    def stop(self) -> None:
        """Drain; whoever does not end in time is ended."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
        process.wait()
