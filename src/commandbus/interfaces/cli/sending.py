"""`send`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from commandbus.interfaces.cli import completing, options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit

GroupKey = Annotated[
    str | None, typer.Option("--group-key", help="One of a group runs at a time, in order.")
]
Requires = Annotated[
    list[str] | None, typer.Option("--requires", help="A tag the worker must have; repeatable.")
]

Domain = Annotated[
    str,
    typer.Argument(
        metavar="DOMAIN",
        help="The domain, such as payments.",
        autocompletion=completing.domains,
    ),
]
Type = Annotated[
    str,
    typer.Argument(metavar="TYPE", help="The type, such as Charge.", autocompletion=completing.types),
]
Data = Annotated[
    str | None, typer.Argument(metavar="DATA", help="JSON, @file, or - for standard input.")
]
App = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE",
        help="module:registry, to check DATA against the handler's type.",
        show_default="COMMANDBUS_APP, else of pyproject.toml",
    ),
]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Check DATA, where the app is known.")]
Header = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="Repeatable.")
]

SHOWN = ("command_id", "domain", "duplicate")
"""What `send --json` says of its result."""


def send(
    domain: Domain,
    command_type: Type,
    data: Data = None,
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
        int | None, typer.Option("--max-attempts", min=1, help="Attempts before the command is parked.")
    ] = None,
    group_key: GroupKey = None,
    requires: Requires = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; repeatable.")] = None,
    header: Header = None,
    app: App = None,
    check: Check = True,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Send a command.

    In a pipe, prints its id and nothing else. Where the app with the handlers can be imported, DATA is
    checked against the type of its handler first; where it cannot, a remark says so.
    """
    payload = _payload(data)
    unchecked = _check(app, domain, command_type, payload) if check else "--no-check"
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
    if unchecked and check:
        output.note(f"the payload was not checked: {unchecked}")
    if json:
        output.json_document({name: getattr(sent, name) for name in SHOWN} | {"checked": not unchecked})
        return
    if output.is_terminal():
        output.done(
            "nothing was added: the unique key is held by"
            if sent.duplicate
            else f"sent {domain}/{command_type}"
        )
    output.write(str(sent.command_id))


def _payload(data: str | None) -> Any:
    """What is sent: a mask of a list stands for a value that is not known here."""
    from commandbus.interfaces.redaction import without_masks

    return without_masks(options.document(data))


def _check(app: str | None, domain: str, command_type: str, payload: object) -> str:
    """Compare the payload with the type of its handler; returns why that was not possible, if it was
    not. Raises PayloadError that names the field when it does not fit, and CliError when the app of
    --app cannot be imported."""
    try:
        named = target.find_app(app)
    except CliError:
        return "name the app with the handlers by --app"
    from commandbus.domain.payload import encode
    from commandbus.interfaces.cli.apps import load_registry

    try:
        registry = load_registry(named)
    except CliError as error:
        if app is not None:
            raise
        return str(error)
    if not registry.has_handler(domain, command_type):
        near = _near(domain, command_type, registry.registered_handlers())
        return f"{named} has no handler for {domain}/{command_type}{near}"
    registry.check_payload(domain, command_type, encode(payload))
    return ""


def _near(domain: str, command_type: str, known: list[tuple[str, str]]) -> str:
    import difflib

    names = ["/".join(one) for one in known]
    near = difflib.get_close_matches(f"{domain}/{command_type}", names, 1)
    return f"; is it {near[0]}?" if near else ""


def _headers(pairs: list[str]) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise CliError(f"--header must be KEY=VALUE, not {pair!r}.", Exit.USAGE)
        headers[key] = value
    return headers or None
