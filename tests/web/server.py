"""A dashboard on a port of its own, in a thread, over a bus that the test can use too."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from commandbus import CommandBus
from commandbus.interfaces.web import create_dashboard


class Served:
    """The address of a dashboard, and a way to run coroutines on its loop."""

    def __init__(self, url: str, bus: CommandBus, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.bus = bus
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float = 60) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


@contextmanager
def served(
    store: str,
    fill: Callable[[CommandBus], Coroutine[Any, Any, None]],
    *,
    prefix: str = "",
    **settings: Any,
) -> Iterator[Served]:
    ready, held = threading.Event(), dict[str, Any]()

    async def serve() -> None:
        async with CommandBus(store) as bus:
            await fill(bus)
            app: Any = create_dashboard(bus, **settings)
            if prefix:
                app = Starlette(routes=[Mount(prefix, app)])
            config = uvicorn.Config(
                app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
            )
            server = uvicorn.Server(config)
            listener = socket.create_server(("127.0.0.1", 0))
            held.update(bus=bus, server=server, loop=asyncio.get_running_loop())
            held["port"] = listener.getsockname()[1]
            ready.set()
            await server.serve(sockets=[listener])

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            held["error"] = error
            raise
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60), "the dashboard did not start"
    if "port" not in held:
        raise AssertionError(f"the dashboard did not start: {held.get('error')}")
    try:
        yield Served(f"http://127.0.0.1:{held['port']}{prefix}", held["bus"], held["loop"])
    finally:
        held["server"].should_exit = True
        thread.join(20)
