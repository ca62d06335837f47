"""`dashboard`: the web dashboard and its API, on a port."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from contextlib import suppress
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.errors import ConfigurationError
from commandbus.interfaces.cli import options, output, target
from commandbus.interfaces.cli.exits import CliError, Exit

if TYPE_CHECKING:
    from commandbus.interfaces.web.local import OneTimeLinks
    from commandbus.worker.handlers import HandlerRegistry


class Algorithm(StrEnum):
    SCRYPT = "scrypt"
    PBKDF2 = "pbkdf2"


Host = Annotated[str, typer.Option("--host", help="Where to listen.")]
Port = Annotated[int, typer.Option("--port", "-p", min=0, max=65_535, help="0 means any free port.")]

LOCAL_HOST = "127.0.0.1"
PORT = 8_080


def dashboard(
    host: Host = LOCAL_HOST,
    port: Port = PORT,
    accounts: Annotated[
        Path | None,
        typer.Option("--accounts", metavar="FILE", help="Who may sign in: a TOML file of accounts."),
    ] = None,
    app: Annotated[
        str | None, typer.Option("--app", help="module:registry, to send commands from forms.")
    ] = None,
    redact: Annotated[
        list[str] | None, typer.Option("--redact", help="A key whose values are hidden; repeatable.")
    ] = None,
    root_path: Annotated[
        str, typer.Option("--root-path", help="The path prefix that a proxy removes.")
    ] = "",
    hash_secret: Annotated[
        str | None,
        typer.Option(
            "--hash-secret",
            metavar="NAME",
            help="Ask for a password or token of an account, and print its entry for the file.",
        ),
    ] = None,
    algorithm: Annotated[
        Algorithm, typer.Option("--algorithm", help="With --hash-secret: pbkdf2 where FIPS applies.")
    ] = Algorithm.SCRYPT,
    url: options.Url = None,
) -> None:
    """Serve the web dashboard and its JSON API.

    Without --accounts it answers to this machine only, and to a browser that opens the link which is
    printed.
    """
    need_web()
    from commandbus.interfaces.web import create_dashboard
    from commandbus.interfaces.web import hash_secret as hashed
    from commandbus.interfaces.web.accounts import AccountsFile
    from commandbus.interfaces.web.serving import bind, check_host, create_server, serve

    try:
        if hash_secret is not None:
            kept = hashed(_secret(), name=hash_secret, algorithm=algorithm.value)
            output.write(_entry(hash_secret, kept))
            return
        check_host(host, has_accounts=accounts is not None)
        if accounts is not None:
            AccountsFile(accounts)  # errors of the file come first
        store = target.find_url(url)
        with target.opened(store):  # errors of the store come before the first request
            pass
        listener = bind(host, port)
        address = address_of(host, listener)
        board = create_dashboard(
            store,
            accounts=accounts or (),
            links=None if accounts else terminal_links("dashboard at", address),
            registry=registry_of(app),
            redact=redact or [],
        )
    except ConfigurationError as error:
        raise CliError(str(error), Exit.USAGE) from error
    if accounts:
        output.done(f"dashboard at {address}/ (Ctrl-C ends it)")
    with suppress(KeyboardInterrupt):  # the ordinary end
        asyncio.run(serve(create_server(board, root_path=root_path), listener))


def listen(port: int) -> socket.socket:
    """A socket for `serve_until_interrupted`: made before long work, so that errors come first."""
    need_web()
    from commandbus.interfaces.web.serving import bind

    try:
        return bind(LOCAL_HOST, port)
    except ConfigurationError as error:
        raise CliError(str(error), Exit.USAGE) from error


def serve_until_interrupted(store: str, listener: socket.socket) -> None:
    """The dashboard of a store, for this machine only, until Ctrl-C."""
    from commandbus.interfaces.web import create_dashboard
    from commandbus.interfaces.web.serving import create_server, serve

    links = terminal_links("dashboard at", address_of(LOCAL_HOST, listener))
    server = create_server(create_dashboard(store, links=links))
    with suppress(KeyboardInterrupt):  # the ordinary end
        asyncio.run(serve(server, listener))


def address_of(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def terminal_links(words: str, address: str) -> OneTimeLinks:
    """Links that are printed here, each of which signs one browser in."""
    from commandbus.interfaces.web.local import OneTimeLinks

    def announce(token: str) -> None:
        nonlocal words
        output.done(f"{words} {address}/sign-in?token={token}")
        words = "a link for the next browser:"

    return OneTimeLinks(announce)


def _entry(name: str, kept: str) -> str:
    """An account as a file of accounts has it. JSON text is TOML text, too."""
    quoted = json.dumps(name)
    return f'[[account]]\nname = {quoted}\nrole = "viewer"    # or "operator"\nsecret = "{kept}"'


def _secret() -> str:
    """Asked for twice at a terminal; in a pipe, its first line."""
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
