"""`health`: a probe for containers and monitors."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.errors import CommandBusError
from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import Exit, exit_code


def health(
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", metavar="TIME", help="Unhealthy when work waits longer: 5m."),
    ] = None,
    max_parked: Annotated[
        int | None, typer.Option("--max-parked", min=0, help="Unhealthy when more are parked.")
    ] = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Probe: is the store reachable, is work stuck?

    Exit code 0 when healthy, 6 when a limit is exceeded, 4 or 5 when the store is not usable.
    """
    import time

    from commandbus.interfaces.cli.queues import all_stats

    limit = options.seconds(max_age, "--max-age")
    began = time.perf_counter()
    try:
        with target.opened(url) as bus:
            bus.session.run(bus.engine.store.check())
            found = all_stats(bus)
    except CommandBusError as error:
        if json:
            output.json_document({"healthy": False, "problems": [str(error)]})
            raise typer.Exit(exit_code(error)) from error
        raise
    took = time.perf_counter() - began
    problems = [
        f"{stats.domain}: the oldest ready command waits for {text.duration(stats.oldest_ready_age)}"
        for stats in found
        if limit is not None and not stats.paused and (stats.oldest_ready_age or 0) > limit
    ]
    parked = sum(stats.parked for stats in found)
    if max_parked is not None and parked > max_parked:
        problems.append(f"{text.plural(parked, 'command')} parked, more than {max_parked:,}")
    if json:
        output.json_document({"healthy": not problems, "problems": problems, "seconds": round(took, 4)})
    else:
        for problem in problems:
            output.error(problem)
        if not problems:
            output.done(f"healthy: the store answered in {text.duration(took)}")
    if problems:
        raise typer.Exit(Exit.UNHEALTHY)
