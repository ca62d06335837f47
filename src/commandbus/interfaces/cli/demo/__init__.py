"""`demo`: the bus at work, before one's eyes, in a few seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.interfaces.cli import options, output
from commandbus.interfaces.cli.dashboard import PORT, listen, serve_until_interrupted
from commandbus.interfaces.cli.exits import CliError, Exit


def demo(
    count: Annotated[
        int, typer.Option("--commands", "-n", min=10, max=100_000, help="How many to send.")
    ] = 3000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed, the same commands.")] = 7,
    crash: Annotated[
        bool, typer.Option("--crash/--no-crash", help="Kill a worker process during the run.")
    ] = True,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Give up after this time.")
    ] = "50s",
    serve: Annotated[
        bool, typer.Option("--serve", help="Then serve the dashboard on its store, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            min=0,
            max=65_535,
            help="With --serve: where; 0 means any free port.",
            show_default=str(PORT),
        ),
    ] = None,
    url: options.Url = None,
) -> None:
    """See the bus at work: failures, retries, a crash.

    Uses a new SQLite file in the temporary folder, which is kept to be looked at; or the store of
    --url, in the domains demo-payments and demo-reports. Exit code 1 if anything were lost.
    """
    import asyncio
    import logging
    import tempfile
    from pathlib import Path

    from commandbus.interfaces.cli.demo.display import view_for
    from commandbus.interfaces.cli.demo.scene import Scene
    from commandbus.interfaces.cli.demo.summary import print_summary
    from commandbus.interfaces.cli.demo.workload import DOMAINS, plan_commands

    if port is not None and not serve:
        raise CliError("--port is the dashboard's: add --serve, or leave it out.", Exit.USAGE)
    listener = listen(PORT if port is None else port) if serve else None
    prefix = "demo-" if url else ""
    if url is None:
        folder = Path(tempfile.mkdtemp(prefix="commandbus-demo-"))
        url = f"sqlite:///{folder / 'demo.db'}"
    planned = plan_commands(count, seed, prefix)
    scene = Scene(url, [prefix + domain for domain in DOMAINS], planned, crash=crash)
    # Each failure on purpose would be a warning on the screen.
    logging.getLogger("commandbus").addHandler(logging.NullHandler())
    patience = options.seconds(timeout, "--timeout") or 0.0
    with view_for(scene) as view:
        report = asyncio.run(scene.play(view, patience))
    print_summary(report, url)
    for problem in report.problems:
        output.error(problem)
    if listener is not None:
        serve_until_interrupted(url, listener)
    if report.problems:
        raise typer.Exit(Exit.FAILURE)
