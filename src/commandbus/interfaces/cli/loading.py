"""`load`: commands in a mix of behaviours, for trying out a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.mixing import DOMAIN, TYPE, parse_mix, shares, shuffled

if TYPE_CHECKING:
    from commandbus.sync import SyncCommandBus

CHUNK = 500
SENDS_PER_SECOND = 20
"""A rate is kept by so many sends a second, of as many commands as it takes."""


def load(
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="Where to send them.")] = DOMAIN,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=10_000_000, help="How many commands.")
    ] = 1000,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.01, help="Commands per second.", show_default="full speed"),
    ] = None,
    mix: Annotated[
        str, typer.Option("--mix", help="Behaviours and their weights.")
    ] = "success=90,transient=5,permanent=2,business=2,slow=1",
    work: Annotated[str, typer.Option("--work", metavar="TIME", help="How long each takes.")] = "0ms",
    slow: Annotated[str, typer.Option("--slow", metavar="TIME", help="How long slow ones take.")] = (
        "2s"
    ),
    seed: Annotated[int, typer.Option("--seed", help="The same seed, the same order.")] = 7,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Send commands that succeed, fail or crash in a given mix.

    success completes, slow takes longer, transient fails once, exhausted fails until it is parked,
    permanent is parked at once, business fails without a retry, crash ends its worker's process.

    Carry them out with `commandbus worker --load`, and forget them with `commandbus queue purge load`.
    """
    seconds = options.seconds(work, "--work") or 0.0
    longer = options.seconds(slow, "--slow") or 0.0
    numbers = shares(parse_mix(mix), count)
    data = [
        {"number": number, "behaviour": name, "seconds": longer if name == "slow" else seconds}
        for number, name in enumerate(shuffled(numbers, seed), 1)
    ]
    sent = 0

    def count_sent(pieces: int) -> None:
        nonlocal sent
        sent += pieces
        advance(pieces)

    with target.opened(url, create=True) as bus, output.progress("sending", count) as advance:
        began = time.monotonic()
        try:
            _send(bus, domain, data, rate, count_sent)
        except KeyboardInterrupt:
            output.warn("stopped")
        took = time.monotonic() - began
    _report(domain, numbers, sent, took, json)
    if sent < count:
        raise typer.Exit(Exit.FAILURE)


def _send(
    bus: SyncCommandBus,
    domain: str,
    data: list[dict[str, object]],
    rate: float | None,
    count_sent: Callable[[int], None],
) -> None:
    """All of it, not faster than the rate."""
    from commandbus.domain.command import SendRequest

    size = CHUNK if rate is None else max(1, min(CHUNK, int(rate / SENDS_PER_SECOND)))
    began = time.monotonic()
    for start in range(0, len(data), size):
        if rate is not None:
            time.sleep(max(0.0, began + start / rate - time.monotonic()))
        chunk = data[start : start + size]
        bus.send_many([SendRequest(domain, TYPE, one, tags=("load",)) for one in chunk])
        count_sent(len(chunk))


def _report(domain: str, numbers: dict[str, int], sent: int, took: float, json: bool) -> None:
    if json:
        output.json_document(
            {"domain": domain, "sent": sent, "seconds": round(took, 3), "mix": numbers}
        )
        return
    speed = f"{sent / took:,.0f} per second" if took else "at once"
    output.done(
        f"sent {text.plural(sent, 'command')} to {domain} in {text.duration(took)}, {speed}: "
        + ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number)
    )
    if numbers.get("crash"):
        output.note("crash ends a worker's process: run several, with --processes 2 or more")
    if output.is_terminal():
        where = "" if domain == DOMAIN else f" --domains {domain}"
        output.note(f"carry them out: commandbus worker --load{where}    watch: commandbus top")
