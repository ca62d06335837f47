"""`send`."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit

GroupKey = Annotated[
    str | None, typer.Option("--group-key", help="One of a group runs at a time, in order.")
]
Requires = Annotated[
    list[str] | None, typer.Option("--requires", help="A tag the worker must have; repeatable.")
]

SHOWN = ("command_id", "domain", "duplicate")
"""What `send --json` says of its result."""


def send(
    domain: Annotated[
        str, typer.Argument(metavar="DOMAIN", help="Who carries it out, such as payments.")
    ],
    command_type: Annotated[str, typer.Argument(metavar="TYPE", help="What to do, such as Charge.")],
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="JSON, @file, or - for standard input.")
    ] = None,
    priority: options.Priority = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Not before: 30s, 5m, 2h.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", metavar="TIME", help="Not started after this time.")
    ] = None,
    command_id: Annotated[
        str | None, typer.Option("--id", metavar="UUID", help="Makes repeating the send safe.")
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option("--correlation-id", metavar="UUID", help="What it belongs to.")
    ] = None,
    unique_key: Annotated[
        str | None, typer.Option("--unique-key", help="Only one such command may be alive.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, help="Tries before an operator is asked.")
    ] = None,
    group_key: GroupKey = None,
    requires: Requires = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; repeatable.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="Repeatable.")
    ] = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Send a command.

    In a pipe, prints its id and nothing else.
    """
    payload = options.document(data)
    expires = options.seconds(expires_in, "--expires-in")
    with target.opened(url, create=True) as bus:
        sent = bus.send(
            domain,
            command_type,
            payload,
            command_id=command_id,
            correlation_id=correlation_id,
            priority=options.priority(priority),
            delay=options.seconds(delay, "--delay"),
            expires_at=None if expires is None else text.after_now(expires),
            max_attempts=max_attempts,
            unique_key=unique_key,
            tags=tag or (),
            group_key=group_key,
            requires=requires or (),
            headers=_headers(header or []),
        )
    if json:
        output.json_document({name: getattr(sent, name) for name in SHOWN})
        return
    if output.is_terminal():
        output.done(
            "nothing was added: the unique key is held by"
            if sent.duplicate
            else f"sent {domain}/{command_type}"
        )
    output.write(str(sent.command_id))


def _headers(pairs: list[str]) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise CliError(f"--header must be KEY=VALUE, not {pair!r}.", Exit.USAGE)
        headers[key] = value
    return headers or None
