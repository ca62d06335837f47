"""`dev`: store, worker and dashboard with one command; the worker follows changes of the code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Annotated, Any

import typer

from commandbus.interfaces.cli import options, output, target
from commandbus.interfaces.cli.dashboard import Host, Port, address_of, need_web, terminal_links
from commandbus.interfaces.cli.reloading import LOOK_SECONDS, STOP_SECONDS, Follower, WorkerProcess
from commandbus.store.urls import shown_url

DRAIN_SECONDS = 5
"""Short, because a developer waits for each restart."""


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
        bool, typer.Option("--reload/--no-reload", help="Restart the worker when code changes.")
    ] = True,
    url: options.Url = None,
) -> None:
    """Run everything that development needs: the store, a worker and the dashboard.

    The store is created when it is not there. The worker is restarted whenever a Python file below
    the current folder changes: running handlers have 5 seconds to finish, then their commands go back
    to the queue.
    """
    need_web()
    from commandbus.errors import ConfigurationError
    from commandbus.interfaces.cli.apps import load_registry
    from commandbus.interfaces.cli.exits import CliError, Exit
    from commandbus.interfaces.web import create_dashboard
    from commandbus.interfaces.web.serving import bind, check_host, create_server, serve

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
    arguments += ["--shutdown-timeout", f"{DRAIN_SECONDS}s"]
    output.done(f"store      {shown_url(store)}")
    links = terminal_links("dashboard ", address_of(host, listener))
    serving = serve(create_server(create_dashboard(store, links=links, registry=registry)), listener)
    # Longer than the drain: a worker that is killed meanwhile would count a crash of what it runs.
    worker = WorkerProcess(arguments, store, DRAIN_SECONDS + STOP_SECONDS)
    try:
        with suppress(KeyboardInterrupt):  # the ordinary end
            asyncio.run(_serve(serving, worker, reload))
    finally:
        # Here, and not in the loop, whose tasks the signal cancels again while it ends.
        worker.end()


async def _serve(serving: Coroutine[Any, Any, None], worker: WorkerProcess, reload: bool) -> None:
    """The dashboard here, the worker in a process of its own, until Ctrl-C."""
    worker.start()
    minding = asyncio.create_task(_mind(worker, reload))
    try:
        await serving
    finally:
        minding.cancel()


async def _mind(worker: WorkerProcess, reload: bool) -> None:
    follower = Follower(worker, reload)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await asyncio.to_thread(follower.look)
