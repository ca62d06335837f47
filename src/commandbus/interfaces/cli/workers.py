"""`worker`: carry out commands with the handlers of an app."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.interfaces.cli import options, target
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.signals import supervisor

if TYPE_CHECKING:
    from commandbus.worker.handlers import HandlerRegistry

App = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        help="module:registry, or a module that holds one.",
        show_default="COMMANDBUS_APP",
    ),
]
Domains = Annotated[
    list[str] | None,
    typer.Option("--domains", "-d", help="Only these; repeatable or with commas.", show_default="all"),
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", "-c", min=1, help="Handlers that run at once, per process.")
]
Patience = Annotated[
    str,
    typer.Option(
        "--shutdown-timeout", metavar="TIME", help="Time for running handlers after the first signal."
    ),
]
Recycle = Annotated[
    int | None,
    typer.Option(
        "--recycle-after",
        min=1,
        metavar="N",
        help="End a worker process after N commands; another takes over.",
    ),
]
Watchdog = Annotated[
    bool,
    typer.Option(
        "--watchdog/--no-watchdog",
        help="Restart the worker when threads are stuck, and its process when that does not help.",
    ),
]
ProbePort = Annotated[
    int | None,
    typer.Option(
        "--probe-port",
        min=0,
        max=65_535,
        metavar="N",
        help="Serve /livez, /readyz, /startupz and /metrics of all worker processes.",
    ),
]
ProbeHost = Annotated[str, typer.Option("--probe-host", help="The address of --probe-port.")]
Heartbeat = Annotated[
    Path | None,
    typer.Option(
        "--heartbeat-file",
        metavar="PATH",
        help="Touched every 5 s while the worker lives; with --processes PATH.0, PATH.1, …",
    ),
]


MaxConcurrency = Annotated[
    int | None,
    typer.Option("--max-concurrency", min=1, help="Follow the load between --concurrency and this."),
]
Ageing = Annotated[
    str | None,
    typer.Option(
        "--ageing", metavar="TIME", help="The waiting time that counts as one step of priority: 60s."
    ),
]


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


UntilIdle = Annotated[
    str | None,
    typer.Option(
        "--until-idle",
        metavar="[=TIME]",
        help="End when nothing runs and nothing is eligible, for so long: --until-idle or "
        "--until-idle=30s.",
    ),
]
Reload = Annotated[bool, typer.Option("--reload", help="Restart when code below this folder changes.")]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="A tag of this worker; repeatable."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting of a worker; repeatable."),
]
LOAD = "--load"
Load = Annotated[bool, typer.Option(LOAD, help="Carry out what `commandbus load` sends.")]


def worker(
    app: App = None,
    domains: Domains = None,
    concurrency: Concurrency = 4,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Worker processes.")] = 1,
    threads: options.Threads = False,
    shutdown_timeout: Patience = "25s",
    recycle_after: Recycle = None,
    until_idle: UntilIdle = None,
    watchdog: Watchdog = True,
    probe_port: ProbePort = None,
    probe_host: ProbeHost = "127.0.0.1",
    heartbeat_file: Heartbeat = None,
    load: Load = False,
    reload: Reload = False,
    tag: Tags = None,
    max_concurrency: MaxConcurrency = None,
    ageing: Ageing = None,
    setting: Settings = None,
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", help="Lines for people, or JSON with the command's ids."),
    ] = LogFormat.TEXT,
    verbose: options.Verbose = False,
    listen_url: options.ListenUrl = None,
    url: options.Url = None,
) -> None:
    """Carry out commands with the handlers of an app.

    The first SIGTERM or SIGINT (Ctrl-C) drains: running handlers finish, nothing new begins. The
    second cancels them, and their commands go back to the queue. The third ends the process at once.
    Handlers run in a child process. When it dies, its commands go back within a second, and another
    takes its place.
    With --until-idle it drains the queue and ends with code 0. Under systemd with Type=notify it
    reports that it is ready and alive.
    """
    from commandbus.interfaces.cli import worker_settings
    from commandbus.interfaces.cli.serving import Plan, configure_logging, serve
    from commandbus.interfaces.cli.supervision import Supervision

    store, name = target.find_url(url, listen_url), _app(app, load)
    supervision = Supervision(probe_host, probe_port, heartbeat_file, watchdog).checked()
    assigned = [*_sizes(concurrency, max_concurrency), f"shutdown_timeout={shutdown_timeout}"]
    assigned += [] if recycle_after is None else [f"recycle_after={recycle_after}"]
    assigned += [] if ageing is None else [f"ageing={ageing}"]
    assigned += [f"tags={','.join(tag)}"] if tag else []
    assigned += setting or []
    settings = worker_settings.parse(assigned)
    idle = options.seconds(until_idle, "--until-idle")
    if reload:
        if idle is not None:
            raise CliError("Give --reload or --until-idle, not both.", Exit.USAGE)
        _follow(store, settings.shutdown_timeout)
    configure_logging(verbose, log_format)
    if processes == 1 and (supervisor() or os.name != "posix"):  # Windows cannot ask a child to drain
        registry, served = _handlers(name, domains)
        code = serve(Plan(store, served, threads, settings, supervision, log_format, idle), registry)
        raise typer.Exit(code)
    from commandbus.interfaces.cli.supervisor import Supervisor

    # The app is imported by the worker processes alone, so that this one stays small.
    arguments = [name, *_repeated("--domains", domains or []), *_repeated("--set", assigned)]
    arguments += ["--threads"] * threads + ["--verbose"] * verbose + ["--log-format", log_format]
    arguments += [] if idle is None else [f"--until-idle={idle}s"]
    raise typer.Exit(Supervisor(arguments, store, supervision, processes, settings.recorder).run())


def _repeated(option: str, values: list[str]) -> list[str]:
    return [part for value in values for part in (option, value)]


def _sizes(concurrency: int, max_concurrency: int | None) -> list[str]:
    """The concurrency, or its bounds, as settings."""
    if max_concurrency is None:
        return [f"concurrency={concurrency}"]
    if max_concurrency < concurrency:
        raise CliError(
            f"--max-concurrency {max_concurrency} is below --concurrency {concurrency}.", Exit.USAGE
        )
    bounds = (f"min_concurrency={concurrency}", f"max_concurrency={max_concurrency}")
    return [f"concurrency={concurrency}", *bounds]


def _follow(store: str, patience: float) -> None:
    """The same worker in a process of its own, which is restarted with the code."""
    import sys

    from commandbus.interfaces.cli.reloading import STOP_SECONDS, WorkerProcess, follow

    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    raise typer.Exit(follow(WorkerProcess(arguments, store, patience + STOP_SECONDS)))


def _app(app: str | None, load: bool) -> str:
    """What finds the handlers in a worker process."""
    if load and app is not None:
        raise CliError("Give an app or --load, not both.", Exit.USAGE)
    return LOAD if load else target.find_app(app)


def _handlers(app: str, wanted: list[str] | None) -> tuple[HandlerRegistry, list[str]]:
    """The handlers, and the domains to serve."""
    chosen = [name.strip() for part in wanted or [] for name in part.split(",") if name.strip()]
    if app == LOAD:
        from commandbus.interfaces.cli.lab import lab_module

        behaviours = lab_module("behaviours", "worker --load")
        served = chosen or [behaviours.DOMAIN]
        return behaviours.build_registry(served), served
    from commandbus.interfaces.cli.apps import load_registry

    registry = load_registry(app)
    return registry, _domains(registry, chosen)


def _domains(registry: HandlerRegistry, chosen: list[str]) -> list[str]:
    """The domains to serve: those asked for, else all that have a handler."""
    known = sorted({domain for domain, _ in registry.registered_handlers()})
    for name in chosen:
        if name not in known:
            raise CliError(
                f"The app has no handler for the domain {name!r}; it serves {', '.join(known)}.",
                Exit.USAGE,
            )
    return chosen or known
