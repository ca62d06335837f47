"""`worker`: carry out commands with the handlers of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.interfaces.cli import options, output, target
from commandbus.interfaces.cli.exits import CliError, Exit

if TYPE_CHECKING:
    from commandbus.worker.handlers import HandlerRegistry


def worker(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="APP",
            help="module:registry, or a module that holds one.",
            show_default="COMMANDBUS_APP",
        ),
    ] = None,
    domains: Annotated[
        list[str] | None,
        typer.Option(
            "--domains", "-d", help="Only these; repeatable or with commas.", show_default="all"
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Handlers that run at once, per process.")
    ] = 4,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Worker processes.")] = 1,
    threads: Annotated[
        bool, typer.Option("--threads", help="Use threads instead of an event loop.")
    ] = False,
    shutdown_timeout: Annotated[
        str, typer.Option("--shutdown-timeout", metavar="TIME", help="Patience of the first signal.")
    ] = "30s",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    url: options.Url = None,
) -> None:
    """Carry out commands with the handlers of an app.

    The first SIGTERM or SIGINT (Ctrl-C) drains: running handlers finish, nothing new begins. The
    second cancels them, and their commands go back to the queue. The third ends the process at once.
    """
    from commandbus.interfaces.cli.apps import load_registry
    from commandbus.interfaces.cli.serving import Plan, configure_logging, serve

    name, store = target.find_app(app), target.find_url(url)
    patience = options.seconds(shutdown_timeout, "--shutdown-timeout") or 0.0
    registry = load_registry(name)
    plan = Plan(store, _domains(registry, domains), concurrency, threads, patience)
    configure_logging(verbose)
    if processes == 1:
        serve(plan, registry)
        return
    from commandbus.interfaces.cli.processes import Supervisor

    arguments = [name, "--concurrency", str(concurrency), "--shutdown-timeout", shutdown_timeout]
    arguments += [part for domain in plan.domains for part in ("--domains", domain)]
    arguments += ["--threads"] * threads + ["--verbose"] * verbose
    output.note(f"starting {processes} worker processes")
    code = Supervisor(arguments, store, processes).run()
    if code:
        raise typer.Exit(code)


def _domains(registry: HandlerRegistry, wanted: list[str] | None) -> list[str]:
    """The domains to serve: those asked for, else all that have a handler."""
    known = sorted({domain for domain, _ in registry.registered_handlers()})
    if not wanted:
        return known
    chosen = [name.strip() for part in wanted for name in part.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise CliError(
                f"The app has no handler for the domain {name!r}; it serves {', '.join(known)}.",
                Exit.USAGE,
            )
    return chosen
