"""The dashboard as an ASGI app: by itself, or mounted in another app under any prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from commandbus.interfaces.web.actions import Desk
from commandbus.interfaces.web.api import answering, api_routes
from commandbus.interfaces.web.auth import Account, Authenticate, Doorkeeper, Refused, Role
from commandbus.interfaces.web.forgery import FormTokens
from commandbus.interfaces.web.forms import Forms
from commandbus.interfaces.web.gate import SecureHeaders, admit
from commandbus.interfaces.web.pages import Pages
from commandbus.interfaces.web.payloads import Payloads
from commandbus.interfaces.web.redaction import DEFAULT_KEYS, Redaction
from commandbus.interfaces.web.stores import Stores
from commandbus.interfaces.web.stream import Stream
from commandbus.interfaces.web.views import HERE
from commandbus.observe.store import render_store
from commandbus.observe.text import CONTENT_TYPE
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.worker.handlers import HandlerRegistry

STATIC = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}


def create_dashboard(
    bus: CommandBus | str,
    *,
    accounts: Iterable[Account] = (),
    authenticate: Authenticate | None = None,
    registry: HandlerRegistry | None = None,
    redact: Iterable[str] = DEFAULT_KEYS,
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
    stream = Stream(desk.figures)

    async def static(request: Request) -> Response:
        await admit(doorkeeper, request, Role.VIEWER)
        name = request.path_params["name"]
        if name not in STATIC:
            raise Refused(404, "There is no such file.")
        headers = {"cache-control": "private, max-age=3600"}
        return FileResponse(HERE / "static" / name, media_type=STATIC[name], headers=headers)

    async def hints(request: Request) -> Response:
        await admit(doorkeeper, request, Role.VIEWER)
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(stream.events(), 200, headers, "text/event-stream")

    async def metrics(request: Request) -> Response:
        await admit(doorkeeper, request, Role.VIEWER)
        found = await desk.breakers(), await desk.workers()
        engine = stores.url.partition(":")[0]
        samples = await desk.figures.now()
        text = render_store(samples, found[0].breakers, found[1].workers, engine)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def nowhere(request: Request, error: Exception | None = None) -> Response:
        """Whoever is not let in does not learn what there is."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        try:
            await admit(doorkeeper, request, Role.VIEWER)
            raise Refused(status, "There is no such page, or it cannot be used like this.")
        except Refused as refused:
            return pages.problem(request, refused)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        """Only run when the dashboard stands alone; a mounted one lives as long as its process."""
        yield
        await stores.close()

    return Starlette(
        routes=[
            Route("/static/{name}", answering(static, doorkeeper)),
            Route("/stream", answering(hints, doorkeeper)),
            Route("/metrics", answering(metrics, doorkeeper)),
            *api_routes(desk, doorkeeper),
            *Forms(desk, pages, doorkeeper, tokens).routes(),
            *pages.routes(),
            Route("/{rest:path}", nowhere, methods=["GET", "POST"]),
        ],
        exception_handlers={404: nowhere, 405: nowhere},
        middleware=[Middleware(SecureHeaders)],
        lifespan=lifespan,
    )
