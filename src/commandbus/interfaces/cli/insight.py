"""`why` and `workers`: why a command is not running, and which workers there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from commandbus.domain.presence import WorkerInfo
from commandbus.interfaces.cli import completing, options, output, target, text
from commandbus.interfaces.cli.lists import Found, Look, listing
from commandbus.interfaces.cli.output import Column, field_of


def _children(worker: WorkerInfo) -> str:
    """How many processes for isolated handlers, and what became of others."""
    kills = [f"{count} killed by {cause}" for cause, count in worker.child_kills.items()]
    restarts = [f"{worker.child_restarts} restarted"] if worker.child_restarts else []
    facts = [*restarts, *kills]
    return "" if not worker.children and not facts else ", ".join([str(worker.children), *facts])


def _slots(worker: WorkerInfo) -> str:
    """How many at once, and how many without an operator's request."""
    configured = worker.configured_concurrency
    differs = configured not in (0, worker.concurrency)
    return f"{worker.concurrency} (configured {configured})" if differs else str(worker.concurrency)


def _state(worker: WorkerInfo, word: Callable[[object], str] = str) -> str:
    """Its state, and who asked for it or, with `asked:`, for one that it has not heard of yet."""
    asked = worker.requested.stop or worker.requested.quiet
    is_heard = worker.state is worker.requested.state or asked is None
    state = word(worker.state) if is_heard else f"asked: {text.status_word(worker.requested.state)}"
    return f"{state} by {asked.actor}" if asked else state


COLUMNS = (
    Column("name", field_of("name"), keep=True),
    Column("state", _state, lambda worker: _state(worker, text.status_word)),
    Column("runtime", field_of("runtime"), wide=True),
    Column("slots", field_of("concurrency"), _slots, right=True),
    Column("children", _children, filled=True),
    Column("domains", lambda worker: ",".join(worker.domains)),
    Column("processes", lambda worker: ",".join(worker.processes), wide=True, filled=True),
    Column("tags", lambda worker: ",".join(worker.tags), wide=True, filled=True),
    Column("host", field_of("host"), wide=True),
    Column("pid", field_of("pid"), right=True, wide=True),
    Column(
        "started",
        lambda worker: text.moment(worker.started_at),
        lambda worker: text.age(worker.started_at),
        right=True,
    ),
    Column(
        "seen",
        lambda worker: text.moment(worker.seen_at),
        lambda worker: text.age(worker.seen_at),
        right=True,
    ),
)


REASONS = (Column("code", field_of("code")), Column("text", field_of("text")))


def why(
    command_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The id of a command, a process or a batch.",
            autocompletion=completing.ids("command", "process", "batch"),
        ),
    ],
    domain: options.Domain = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Say why a command is not running, or what a process or a batch waits for."""
    from commandbus.interfaces.cli.commands import advise, find
    from commandbus.interfaces.cli.finding import whole_id

    record = None
    with target.opened(url) as bus:
        wanted = whole_id(bus, command_id, "command", "process", "batch")
        if bus.get_process(wanted) is None and bus.get_batch(wanted) is None:
            record = find(bus, str(wanted), domain)
            domain = record.domain
        answer = bus.why(wanted, domain=domain)
    if json:
        output.json_document(answer)
        return
    if not output.is_terminal():
        output.tsv(answer.reasons, REASONS)
        return
    for reason in answer.reasons:
        output.sentence(reason.text)
    if record is not None:
        advise(record)


@listing(times="Started")
def list_(look: Look) -> Found:
    """List the workers and process routers that reported themselves recently."""
    found = look.choose(look.bus.list_workers(), field_of("started_at"))
    return Found("workers", found, COLUMNS, "no worker has reported itself recently")
