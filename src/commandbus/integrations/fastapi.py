"""For FastAPI and Starlette: a bus, and if wished a worker, as long as the app lives.

app = FastAPI(lifespan=bus_lifespan("sqlite:///shop.db", registry=registry))
install_error_handlers(app)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from math import ceil
from typing import Any, TypeAlias

try:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse
except ImportError as missing:
    raise ModuleNotFoundError(
        f"commandbus.integrations.fastapi needs the package {missing.name}; "
        "`pip install 'durable-commandbus[fastapi]'` brings it, for Starlette alone [web].",
        name=missing.name,
    ) from None

from commandbus.errors import (
    BatchNotFoundError,
    CommandNotFoundError,
    ConfigurationError,
    ProcessNotFoundError,
    QueueFull,
    StoreUnavailable,
)
from commandbus.runtimes.asyncio.bus import CommandBus
from commandbus.runtimes.asyncio.worker import Worker
from commandbus.worker.handlers import HandlerRegistry

logger = logging.getLogger("commandbus.integrations")

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]

STATE = "commandbus"

_UNKNOWN: dict[type[Exception], str] = {
    CommandNotFoundError: "There is no such command.",
    BatchNotFoundError: "There is no such batch.",
    ProcessNotFoundError: "There is no such process.",
}


def bus_lifespan(
    bus: CommandBus | str | None = None,
    *,
    registry: HandlerRegistry | None = None,
    domains: str | Iterable[str] | None = None,
    worker: Mapping[str, Any] | None = None,
    lifespan: Lifespan | None = None,
) -> Lifespan:
    """A lifespan for an app, which opens the bus, and closes it at the end.

    `bus` is a URL, or a bus that is not open yet. With a `registry`, a worker for its domains, or for
    `domains`, runs in the app's process, with the further arguments `worker`; when the app stops,
    running handlers may finish. A `lifespan` of your own runs inside, and its state is kept.
    """

    @asynccontextmanager
    async def living(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        opened = bus if isinstance(bus, CommandBus) else CommandBus(bus)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(opened)
            if registry is not None:
                served = domains or dict.fromkeys(one for one, _ in registry.registered_handlers())
                options: dict[str, Any] = dict(worker or {})
                hired = Worker(opened, served, registry, **options)
                await stack.enter_async_context(_working(hired))
            own = None if lifespan is None else await stack.enter_async_context(lifespan(app))
            yield {**(own or {}), STATE: opened}

    return living


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    running = asyncio.ensure_future(worker.run())
    running.add_done_callback(_tell)
    try:
        yield
    finally:
        await worker.stop()
        await asyncio.wait({running})


def _tell(running: asyncio.Task[None]) -> None:
    """A worker that fails must not do so in silence, nor end the app that it lives in."""
    if not running.cancelled() and (error := running.exception()) is not None:
        logger.error("the worker of the app has ended: %s", error, exc_info=error)


def get_bus(connection: HTTPConnection) -> CommandBus:
    """The bus of the app, as a dependency: `bus: Annotated[CommandBus, Depends(get_bus)]`; in
    Starlette call it with the request. Works in mounted apps and for websockets. Raises
    ConfigurationError when the app has no `bus_lifespan`, or its lifespan was not run."""
    found = connection.scope.get("state", {}).get(STATE)
    if not isinstance(found, CommandBus):
        raise ConfigurationError(
            "The app has no bus: give it lifespan=bus_lifespan(url), and in tests use "
            "`with TestClient(app):`, which runs the lifespan."
        )
    return found


def install_error_handlers(app: Starlette) -> None:
    """Answer what the bus refuses for now: QueueFull and RateLimited as 429 with Retry-After, and
    StoreUnavailable as 503; and an unknown command, batch or process as 404. Other errors are left to
    the app, TimeoutError included: libraries of the app raise it, too."""
    app.add_exception_handler(QueueFull, _full)
    app.add_exception_handler(StoreUnavailable, _unavailable)
    for kind in _UNKNOWN:
        app.add_exception_handler(kind, _unknown)


def _full(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, QueueFull)
    body = {"error": type(error).__name__, "detail": str(error)}
    return JSONResponse(body, 429, {"Retry-After": str(max(1, ceil(error.retry_after)))})


def _unavailable(request: Request, error: Exception) -> JSONResponse:
    # What is wrong with the store is for the log: it may name hosts.
    logger.error("the store is unavailable: %s", error)
    detail = "The store cannot be reached; try again."
    return JSONResponse({"error": type(error).__name__, "detail": detail}, 503)


def _unknown(request: Request, error: Exception) -> JSONResponse:
    # The advice in the error's own text is for the programmer, not for the client.
    return JSONResponse({"error": type(error).__name__, "detail": _UNKNOWN[type(error)]}, 404)
