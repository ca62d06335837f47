"""`health`: a probe for containers and monitors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.errors import CommandBusError, StoreUnavailable
from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import Exit, exit_code

if TYPE_CHECKING:
    from commandbus.store.records import QueueStats


def health(
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", metavar="TIME", help="Unhealthy when work waits longer: 5m."),
    ] = None,
    max_parked: Annotated[
        int | None, typer.Option("--max-parked", min=0, help="Unhealthy when more are parked.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long the store may take to answer.")
    ] = "2s",
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Probe: is the store reachable, is work stuck?

    Exit code 0 when healthy, 6 when a limit is exceeded, 4 or 5 when the store is not usable.
    """
    import time

    patience = options.seconds(timeout, "--timeout") or 0.0
    limit = options.seconds(max_age, "--max-age")
    began = time.perf_counter()
    try:
        found = _asked(url, patience)
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


def _asked(url: str | None, patience: float) -> list[QueueStats]:
    """The figures of all domains. Raises StoreUnavailable when the store does not answer in time: it is
    asked in another thread, because opening a connection may take longer than a probe may wait."""
    import threading

    from commandbus.interfaces.cli.queues import all_stats

    answers: list[list[QueueStats]] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            with target.opened(url) as bus:
                bus.session.run(bus.engine.store.check())
                answers.append(all_stats(bus))
        except Exception as error:  # raised again below, where the answer is waited for
            errors.append(error)

    asking = threading.Thread(target=ask, name="commandbus-health", daemon=True)
    asking.start()
    asking.join(patience)
    if errors:
        raise errors[0]
    if not answers:
        raise StoreUnavailable(f"The store did not answer within {text.duration(patience)}.")
    return answers[0]
