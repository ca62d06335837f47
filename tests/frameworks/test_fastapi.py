"""A bus and a worker that live as long as a FastAPI or Starlette app."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from commandbus import CommandBus, HandlerRegistry, SendRequest, StoreUnavailable
from commandbus.errors import (
    BatchNotFoundError,
    CommandNotFoundError,
    ConfigurationError,
    ProcessNotFoundError,
)
from commandbus.integrations.fastapi import bus_lifespan, get_bus, install_error_handlers
from commandbus.processes import Chain


async def charge(request: Request) -> JSONResponse:
    bus = get_bus(request)
    sent = await bus.send("payments", "charge", await request.json(), sender="web")
    record = await bus.wait(sent.command_id, timeout=30) if "wait" in request.query_params else None
    return JSONResponse({"id": str(sent.command_id), "result": record and record.result})


def registry_with(handler: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("payments", "charge", handler)
    return registry


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """What a server does around an app, in this process."""
    async with app.router.lifespan_context(app) as state:

        async def served(scope: Any, receive: Any, send: Any) -> None:
            scope["state"] = dict(state or {})
            await app(scope, receive, send)

        transport = httpx.ASGITransport(served)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            yield client


ROUTES = [Route("/charge", charge, methods=["POST"])]


async def test_an_app_sends_and_its_own_worker_carries_out(tmp_path: Path) -> None:
    registry = registry_with(lambda command, context: command.data["amount"] * 2)
    url = f"sqlite:///{tmp_path}/app.db"
    app = Starlette(routes=ROUTES, lifespan=bus_lifespan(url, registry=registry))
    async with client_of(app) as client:
        assert (await client.post("/charge?wait", json={"amount": 21})).json()["result"] == 42


async def test_the_worker_of_an_app_drives_processes(tmp_path: Path) -> None:
    registry = registry_with(lambda command, context: command.data)
    registry.process(Chain)
    url = f"sqlite:///{tmp_path}/app.db"
    app = Starlette(routes=ROUTES, lifespan=bus_lifespan(url, registry=registry))
    async with app.router.lifespan_context(app) as state:
        bus: CommandBus = (state or {})["commandbus"]
        started = await bus.chain(*[SendRequest("payments", "charge", n) for n in (1, 2)])
        record = await bus.wait_process(started, timeout=10)
    assert record.state["results"] == [1, 2]


async def test_the_worker_of_an_app_finishes_what_runs_before_the_bus_is_closed(tmp_path: Path) -> None:
    """The handler ends only after the end of the app has begun."""
    url, begun, ending = f"sqlite:///{tmp_path}/app.db", threading.Event(), threading.Event()

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[None]:
        yield
        ending.set()

    def slow(command: Any, context: Any) -> str:
        begun.set()
        return "done" if ending.wait(30) else "too late"

    app = Starlette(
        routes=ROUTES, lifespan=bus_lifespan(url, registry=registry_with(slow), lifespan=own)
    )
    async with client_of(app) as client:
        sent = (await client.post("/charge", json={})).json()["id"]
        assert await asyncio.to_thread(begun.wait, 30)
    async with CommandBus(url) as bus:
        record = await bus.get_command(sent)
    assert record is not None
    assert (record.status, record.result) == ("COMPLETED", "done")


async def test_a_mounted_app_has_the_bus_too_and_a_lifespan_of_its_own_is_kept() -> None:
    ended: list[str] = []

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"mine": 1}
        ended.append("own")

    async def look(request: Request) -> JSONResponse:
        return JSONResponse([request.state.mine, get_bus(request).url])

    inner = Starlette(routes=[Route("/look", look)])
    app = Starlette(
        routes=[Mount("/inner", inner)],
        lifespan=bus_lifespan(CommandBus("memory://"), lifespan=own),
    )
    async with client_of(app) as client:
        assert (await client.get("/inner/look")).json() == [1, "memory://"]
    assert ended == ["own"]


async def test_a_full_queue_and_a_fast_sender_are_429_with_retry_after() -> None:
    bus = CommandBus("memory://", max_pending=1)
    app = Starlette(routes=ROUTES, lifespan=bus_lifespan(bus))
    install_error_handlers(app)
    async with client_of(app) as client:
        assert (await client.post("/charge", json={})).status_code == 200
        refused = await client.post("/charge", json={})
        assert (refused.status_code, refused.json()["error"]) == (429, "QueueFull")
        assert int(refused.headers["retry-after"]) >= 1

    limited = CommandBus("memory://")
    app = Starlette(routes=ROUTES, lifespan=bus_lifespan(limited))
    install_error_handlers(app)
    async with client_of(app) as client:
        await limited.set_limit("payments", per_sender=True, rate=1, per=10, burst=1)
        assert (await client.post("/charge", json={})).status_code == 200
        refused = await client.post("/charge", json={})
        assert (refused.status_code, refused.json()["error"]) == (429, "RateLimited")
        assert int(refused.headers["retry-after"]) >= 9


async def test_a_store_that_is_away_is_503_and_its_address_stays_inside() -> None:
    async def broken(request: Request) -> JSONResponse:
        raise StoreUnavailable("db.internal:5432 refuses")

    app = Starlette(routes=[Route("/broken", broken)], lifespan=bus_lifespan("memory://"))
    install_error_handlers(app)
    async with client_of(app) as client:
        answer = await client.get("/broken")
    assert answer.status_code == 503
    assert "internal" not in answer.text


@pytest.mark.parametrize(
    ("unknown", "detail"),
    [
        (CommandNotFoundError("payments", UUID(int=7)), "There is no such command."),
        (BatchNotFoundError(UUID(int=7)), "There is no such batch."),
        (ProcessNotFoundError(UUID(int=7)), "There is no such process."),
    ],
)
async def test_an_unknown_id_is_404(unknown: Exception, detail: str) -> None:
    async def look(request: Request) -> JSONResponse:
        raise unknown

    app = Starlette(routes=[Route("/look", look)], lifespan=bus_lifespan("memory://"))
    install_error_handlers(app)
    async with client_of(app) as client:
        answer = await client.get("/look")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": type(unknown).__name__, "detail": detail},
    )


async def test_a_wait_for_an_id_that_was_never_sent_is_404_and_one_in_time_is_left_to_the_app() -> None:
    async def look(request: Request) -> JSONResponse:
        record = await get_bus(request).wait(request.path_params["id"], timeout=0.01)
        return JSONResponse(record.result)

    app = Starlette(routes=[*ROUTES, Route("/{id}", look)], lifespan=bus_lifespan("memory://"))
    install_error_handlers(app)
    async with client_of(app) as client:
        assert (await client.get(f"/{UUID(int=7)}")).status_code == 404
        waits = (await client.post("/charge", json={})).json()["id"]
        with pytest.raises(TimeoutError):
            await client.get(f"/{waits}")


async def test_an_app_without_the_lifespan_gets_an_error_with_the_cure() -> None:
    async with client_of(Starlette(routes=ROUTES)) as client:
        with pytest.raises(ConfigurationError, match="bus_lifespan"):
            await client.post("/charge", json={})


async def test_a_dependency_of_fastapi() -> None:
    fastapi = pytest.importorskip(
        "fastapi", reason="FastAPI is not installed: only Starlette is tested"
    )
    app = fastapi.FastAPI(lifespan=bus_lifespan(CommandBus("memory://", max_pending=1)))
    install_error_handlers(app)
    depends = Annotated[CommandBus, fastapi.Depends(get_bus)]

    async def place(bus: depends) -> dict[str, str]:  # type: ignore[valid-type]
        return {"id": str((await bus.send("orders", "ship")).command_id)}

    place.__annotations__["bus"] = depends
    app.post("/orders")(place)
    async with client_of(app) as client:
        assert (await client.post("/orders")).json()["id"]
        assert (await client.post("/orders")).status_code == 429


def test_without_the_extra_the_import_names_it() -> None:
    script = """
import sys
sys.modules["starlette"] = None
import commandbus.integrations.fastapi
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 1
    assert "pip install 'durable-commandbus[fastapi]'" in run.stderr.splitlines()[-1]
