"""The dashboard as an ASGI app: by itself, or mounted in another app under any prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from commandbus.interfaces.web.actions import Desk
from commandbus.interfaces.web.api import api_routes
from commandbus.interfaces.web.auth import Account, Authenticate, Doorkeeper
from commandbus.interfaces.web.forgery import FormTokens
from commandbus.interfaces.web.forms import Forms
from commandbus.interfaces.web.gate import SecureHeaders
from commandbus.interfaces.web.pages import Pages
from commandbus.interfaces.web.payloads import Payloads
from commandbus.interfaces.web.redaction import Redaction
from commandbus.interfaces.web.sides import Sides
from commandbus.interfaces.web.stores import Stores
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.worker.handlers import HandlerRegistry


def create_dashboard(
    bus: CommandBus | str,
    *,
    accounts: Iterable[Account] = (),
    authenticate: Authenticate | None = None,
    registry: HandlerRegistry | None = None,
    redact: Iterable[str] = (),
    open_to_this_machine: bool = False,
    title: str = "Command Bus",
) -> Starlette:
    """An ASGI app over a bus that is open, or over a URL that is opened when it is needed.

    `accounts` may log in; or `authenticate` says who a request is from, where the app around it knows
    already. With neither, only this machine is served. With a `registry`, commands can be sent from
    forms made of the handlers' types. Values under keys that contain one of `redact` are never shown.
    Raises ConfigurationError for accounts whose secrets are not hashed.
    """
    stores = Stores(bus)
    desk = Desk(stores, Redaction(redact))
    desk.payloads = Payloads(registry)
    doorkeeper, tokens = Doorkeeper(accounts, authenticate), FormTokens()
    pages = Pages(desk, doorkeeper, tokens, title)
    sides = Sides(desk, pages, doorkeeper)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        """Only run when the dashboard stands alone; a mounted one lives as long as its process."""
        yield
        await stores.close()

    return Starlette(
        routes=[
            *sides.routes(),
            *api_routes(desk, doorkeeper),
            *Forms(desk, pages, doorkeeper, tokens).routes(),
            *pages.routes(),
            Route("/{rest:path}", sides.nowhere, methods=["GET", "POST"]),
        ],
        exception_handlers={404: sides.nowhere, 405: sides.nowhere},
        middleware=[Middleware(SecureHeaders)],
        lifespan=lifespan,
    )
