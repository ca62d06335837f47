"""A dashboard on a port of its own, in a thread, over a bus that the test can use too."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from commandbus import CommandBus
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.local import OneTimeLinks
from commandbus.interfaces.web.serving import create_server, serve


class Served:
    """The address of a dashboard, and a way to run coroutines on its loop."""

    def __init__(
        self, url: str, bus: CommandBus, loop: asyncio.AbstractEventLoop, tokens: list[str]
    ) -> None:
        self.url = url
        self.bus = bus
        self._loop = loop
        self._tokens = tokens

    @property
    def link(self) -> str:
        """The link that signs in the next browser; empty where there are accounts."""
        return f"{self.url}/sign-in?token={self._tokens[-1]}" if self._tokens else ""

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
    """Without accounts, browsers sign in with `link`."""
    ready, held, tokens = threading.Event(), dict[str, Any](), list[str]()
    if not settings.keys() & {"accounts", "authenticate", "open_to_this_machine"}:
        settings["links"] = OneTimeLinks(tokens.append)

    async def run_server() -> None:
        async with CommandBus(store) as bus:
            await fill(bus)
            app: Any = create_dashboard(bus, **settings)
            if prefix:
                app = Starlette(routes=[Mount(prefix, app)])
            server = create_server(app)
            server.config.lifespan = "off"
            listener = socket.create_server(("127.0.0.1", 0))
            held.update(bus=bus, server=server, loop=asyncio.get_running_loop())
            held["port"] = listener.getsockname()[1]
            ready.set()
            await serve(server, listener)

    def run() -> None:
        try:
            asyncio.run(run_server())
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
        url = f"http://127.0.0.1:{held['port']}{prefix}"
        yield Served(url, held["bus"], held["loop"], tokens)
    finally:
        held["server"].should_exit = True
        thread.join(20)
