"""The dashboard as an ASGI app: by itself, or mounted in another app under any prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from commandbus.errors import ConfigurationError
from commandbus.interfaces.redaction import Redaction
from commandbus.interfaces.web.accounts import AccountsFile, fixed
from commandbus.interfaces.web.actions import OperatorApi
from commandbus.interfaces.web.admission import SecureHeaders
from commandbus.interfaces.web.api import api_routes
from commandbus.interfaces.web.auth import (
    AccountAuthenticator,
    AppAuthenticator,
    Authenticator,
    LocalAuthenticator,
)
from commandbus.interfaces.web.csrf import FormTokens
from commandbus.interfaces.web.fleet import Fleet
from commandbus.interfaces.web.forms import Forms
from commandbus.interfaces.web.identity import Account, Authenticate
from commandbus.interfaces.web.local import OneTimeLinks
from commandbus.interfaces.web.other_routes import OtherRoutes
from commandbus.interfaces.web.pages import Pages
from commandbus.interfaces.web.payloads import Payloads
from commandbus.interfaces.web.sessions import Keys
from commandbus.interfaces.web.signing_in import SigningIn
from commandbus.interfaces.web.stores import Stores
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.worker.handlers import HandlerRegistry


def create_dashboard(
    bus: CommandBus | str,
    *,
    accounts: Iterable[Account] | Path = (),
    authenticate: Authenticate | None = None,
    open_to_this_machine: bool = False,
    links: OneTimeLinks | None = None,
    registry: HandlerRegistry | None = None,
    redact: Iterable[str] = (),
    secret: str | None = None,
    title: str = "Command Bus",
) -> Starlette:
    """An ASGI app over a bus that is open, or over a URL that is opened when it is needed.

    `accounts` may sign in: a list, or the path of a file that is read again when it changes. Or
    `authenticate` returns the account of a request, where the app around the dashboard knows its users.
    With neither, `links` let in browsers at this machine, and `open_to_this_machine` lets in every
    request that certainly comes from it; every user and program of the machine is an operator then.

    With a `registry`, commands can be sent from forms made of the handlers' types. Values under keys
    that contain one of `redact`, or of the default names, are never shown. Several processes of one
    app need the same `secret` to accept each other's forms and sessions.

    Raises ConfigurationError when nothing says who may use it, and for accounts that cannot be used.
    """
    keys = Keys(secret)
    stores, tokens = Stores(bus), FormTokens(keys)
    authenticator = _authenticator(
        keys, Fleet(stores, keys), accounts, authenticate, links, open_to_this_machine
    )
    desk = OperatorApi(stores, Redaction(redact))
    desk.payloads = Payloads(registry)
    pages = Pages(desk, authenticator, tokens, title)
    sides = OtherRoutes(desk, pages, authenticator)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        """Only run when the dashboard stands alone; a mounted one lives as long as its process."""
        yield
        await stores.close()

    return Starlette(
        routes=[
            *sides.routes(),
            *api_routes(desk, authenticator),
            *SigningIn(desk, pages, authenticator, tokens).routes(),
            *Forms(desk, pages, authenticator, tokens).routes(),
            *pages.routes(),
            Route("/{rest:path}", sides.nowhere, methods=["GET", "POST"]),
        ],
        exception_handlers={404: sides.nowhere, 405: sides.nowhere, Exception: sides.broken},
        middleware=[Middleware(SecureHeaders)],
        lifespan=lifespan,
    )


def _authenticator(
    keys: Keys,
    fleet: Fleet,
    accounts: Iterable[Account] | Path,
    authenticate: Authenticate | None,
    links: OneTimeLinks | None,
    open_to_this_machine: bool,
) -> Authenticator:
    if isinstance(accounts, str):
        raise ConfigurationError(
            f"accounts must be a list of Account(…) or a Path, not the text {accounts!r}. For a file: "
            f"accounts=Path({accounts!r})."
        )
    known = accounts if isinstance(accounts, Path) else list(accounts)
    ways = [bool(known), authenticate is not None, open_to_this_machine or links is not None]
    if sum(ways) != 1:
        raise ConfigurationError(
            "Say who may use the dashboard, in one way: accounts=[Account(…)] or a Path of a file with "
            "accounts, authenticate= where your app knows its users, or open_to_this_machine=True for "
            "development, which makes every user and program of this machine an operator."
        )
    if authenticate is not None:
        return AppAuthenticator(keys, authenticate)
    if known:
        source = AccountsFile(known) if isinstance(known, Path) else fixed(known)
        return AccountAuthenticator(keys, source, fleet=fleet)
    return LocalAuthenticator(keys, links)
