"""`dashboard`: the web dashboard and its API, on a port."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.errors import ConfigurationError
from commandbus.interfaces.cli import options, output, target
from commandbus.interfaces.cli.exits import CliError, Exit

if TYPE_CHECKING:
    from commandbus.worker.handlers import HandlerRegistry

Host = Annotated[str, typer.Option("--host", help="Where to listen.")]
Port = Annotated[int, typer.Option("--port", "-p", min=0, max=65_535, help="0 means any free port.")]


def dashboard(
    host: Host = "127.0.0.1",
    port: Port = 8_080,
    accounts: Annotated[
        Path | None,
        typer.Option("--accounts", metavar="FILE", help="Who may log in: a TOML file of accounts."),
    ] = None,
    app: Annotated[
        str | None, typer.Option("--app", help="module:registry, to send commands from forms.")
    ] = None,
    redact: Annotated[
        list[str] | None, typer.Option("--redact", help="A key whose values are hidden; repeatable.")
    ] = None,
    root_path: Annotated[
        str, typer.Option("--root-path", help="The prefix that a proxy in front takes away.")
    ] = "",
    hash_secret: Annotated[
        bool, typer.Option("--hash-secret", help="Ask for a password or token, print what to keep.")
    ] = False,
    url: options.Url = None,
) -> None:
    """Serve the web dashboard and its JSON API.

    Without --accounts it answers to this machine only.
    """
    need_web()
    from commandbus.interfaces.web import create_dashboard
    from commandbus.interfaces.web import hash_secret as hashed
    from commandbus.interfaces.web.accounts import read_accounts
    from commandbus.interfaces.web.redaction import DEFAULT_KEYS
    from commandbus.interfaces.web.serving import bind, check_host, create_server

    try:
        if hash_secret:
            output.write(hashed(_secret()))
            return
        check_host(host, has_accounts=accounts is not None)
        known = [] if accounts is None else read_accounts(accounts)
        store = target.find_url(url)
        with target.opened(store):  # errors of the store are told before anybody is served
            pass
        board = create_dashboard(
            store,
            accounts=known,
            registry=registry_of(app),
            redact=[*DEFAULT_KEYS, *(redact or [])],
        )
        listener = bind(host, port)
    except ConfigurationError as error:
        raise CliError(str(error), Exit.USAGE) from error
    shown = f"[{host}]" if ":" in host else host
    output.done(f"dashboard at http://{shown}:{listener.getsockname()[1]}/ (Ctrl-C ends it)")
    server = create_server(board, root_path=root_path)
    with suppress(KeyboardInterrupt):  # the ordinary end
        asyncio.run(server.serve(sockets=[listener]))


def _secret() -> str:
    """Asked for twice where somebody types it; in a pipe, the first line of it."""
    if sys.stdin.isatty():
        typed: str = typer.prompt("Secret", hide_input=True, confirmation_prompt=True)
        return typed
    return sys.stdin.readline().rstrip("\r\n")


def registry_of(app: str | None) -> HandlerRegistry | None:
    if app is None:
        return None
    from commandbus.interfaces.cli.apps import load_registry

    return load_registry(app)


def need_web() -> None:
    missing = [name for name in ("starlette", "jinja2", "uvicorn") if find_spec(name) is None]
    if missing:
        raise CliError(
            f"The dashboard needs {', '.join(missing)}; install it with "
            "`pip install 'durable-commandbus[web]'`.",
            Exit.USAGE,
        )
