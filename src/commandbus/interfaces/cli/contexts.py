"""`context`: stores by name, kept in a private file of the user."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from commandbus.errors import ConfigurationError
from commandbus.interfaces.cli import completing, options, output, target
from commandbus.interfaces.cli.context_file import Contexts
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.lists import Found, Look, listing
from commandbus.interfaces.cli.output import Column
from commandbus.store.urls import shown_url

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.")]
KnownName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The context's name.", autocompletion=completing.contexts),
]
MaybeName = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="The context's name.", autocompletion=completing.contexts),
]


class Shown(msgspec.Struct, frozen=True):
    """A context without the secrets of its URL."""

    name: str
    url: str
    in_use: bool


COLUMNS = (
    Column("in use", lambda one: "yes" if one.in_use else "", show=lambda one: "*" * one.in_use),
    Column("name", output.field_of("name"), keep=True),
    Column("url", output.field_of("url")),
)


def add(
    name: Name,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="The store; - reads it from standard input."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Change one that exists.")] = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
    json: options.Json = False,
) -> None:
    """Give a store a name.

    With --url - a password is in no argument, which other users of the machine could see: it is asked
    for on a terminal, and read from a pipe otherwise.
    """
    if not _NAME.fullmatch(name):
        raise CliError(
            f"{name!r} is no name for a context: write up to 63 letters, digits, dots, _ and -.",
            Exit.USAGE,
        )
    _check_free(Contexts.load(), name, replace)
    store = _checked(_given(url or target.chosen_url))
    with Contexts.changing() as known:
        _check_free(known, name, replace)
        known.urls[name] = store
        known.in_use = name if use else known.in_use
    hint = "" if known.in_use == name else f"; `commandbus context use {name}` makes it the store"
    shown = Shown(name, shown_url(store), known.in_use == name)
    _report(shown, f"context {name} is {shown.url}{hint}", json)


def _check_free(known: Contexts, name: str, replace: bool) -> None:
    if name in known.urls and not replace:
        raise CliError(
            f"There is a context {name!r} already, {shown_url(known.urls[name])}; repeat it with "
            "--replace to change it.",
            Exit.USAGE,
        )


def _report(shown: Shown | None, message: str, json: bool) -> None:
    """What was changed: the context; none, where none is in use any more."""
    if json:
        output.json_document({"context": shown})
    else:
        output.done(message)


def use(
    name: MaybeName = None,
    none: Annotated[bool, typer.Option("--none", help="Stop using a context.")] = False,
    json: options.Json = False,
) -> None:
    """Use a context wherever neither --url, --context nor COMMANDBUS_URL names the store."""
    if (name is None) != none:
        raise CliError("Give the name of a context, or --none; not both.", Exit.USAGE)
    with Contexts.changing() as known:
        shown = None if name is None else Shown(name, shown_url(known.url_of(name)), in_use=True)
        known.in_use = name
    if os.environ.get("COMMANDBUS_URL"):
        output.warn("COMMANDBUS_URL is set, and wins: unset it for the context to count")
    message = "no context is in use" if shown is None else f"using {name}, {shown.url}"
    _report(shown, message, json)


@listing(store=False)
def list_(look: Look) -> Found:
    """List the contexts, and which one is in use."""
    known = Contexts.load()
    rows = [Shown(name, shown_url(url), name == known.in_use) for name, url in known.sorted()]
    return Found("contexts", rows, COLUMNS, "no contexts: `commandbus context add NAME --url URL`")


def show(name: MaybeName = None, json: options.Json = False) -> None:
    """Show a context; without a name, the store that commands mean here, and what says so."""
    if name is None:
        store, source = target.find_store(None)
        document, line = {"url": shown_url(store), "source": source}, f"by {source}"
    else:
        known = Contexts.load()
        one = Shown(name, shown_url(known.url_of(name)), name == known.in_use)
        store, document = known.urls[name], msgspec.to_builtins(one)
        line = "in use" if one.in_use else "not in use"
    if json:
        output.json_document(document)
    else:
        output.write(shown_url(store))
        output.note(line)


def remove(name: KnownName, json: options.Json = False) -> None:
    """Forget a context. Its store stays as it is."""
    with Contexts.changing() as known:
        removed = Shown(name, shown_url(known.url_of(name)), in_use=False)
        del known.urls[name]
        was_used = known.in_use == name
        known.in_use = None if was_used else known.in_use
    message = f"context {name} is removed{'; no context is in use now' if was_used else ''}"
    _report(removed, message, json)


def _given(url: str | None) -> str:
    if url is None:
        raise CliError("Which store? Give --url URL, or --url - to be asked for it.", Exit.USAGE)
    if url != "-":
        return url
    if sys.stdin.isatty():
        typed: str = typer.prompt("URL", hide_input=True, err=True)
        return typed.strip()
    line = sys.stdin.readline().strip()
    if not line:
        raise CliError("Standard input has no URL in its first line.", Exit.USAGE)
    return line


def _checked(url: str) -> str:
    """A URL that a store can have, which means the same in every folder."""
    from commandbus.runtimes.threads.bus import SyncCommandBus

    try:
        target.check_store(SyncCommandBus(url).engine, create=True)
    except ConfigurationError as error:
        raise CliError(str(error), Exit.USAGE) from error
    prefix = "sqlite:///"
    if url.startswith(prefix) and not url.startswith(f"{prefix}/"):
        return f"{prefix}{Path.cwd() / url.removeprefix(prefix)}"
    return url
