"""The JSON API: routes made from the table, over the same desk as the pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commandbus.interfaces.web.actions import OperatorApi
from commandbus.interfaces.web.admission import admit, body_of
from commandbus.interfaces.web.auth import Authenticator
from commandbus.interfaces.web.csrf import check_origin
from commandbus.interfaces.web.endpoints import ENDPOINTS, PATH_TYPES, Ask, Endpoint
from commandbus.interfaces.web.identity import Role
from commandbus.interfaces.web.openapi import PREFIX, document_with
from commandbus.interfaces.web.problems import HANDLED, headers_of, problem_of, status_of
from commandbus.interfaces.web.refusals import Refused

JSON = "application/json"
Answer = Callable[[Request], Coroutine[Any, Any, Response]]


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON without a `<`, which only texts have: no reader can take what it quotes for a page."""
    written = msgspec.json.encode(value, enc_hook=str).replace(b"<", b"\\u003c")
    return Response(written, status, headers, JSON)


def api_routes(desk: OperatorApi, authenticator: Authenticator) -> list[Route]:
    """One route per endpoint, and the document that describes them."""

    async def described(request: Request) -> Response:
        await admit(authenticator, request, Role.VIEWER)
        prefix = request.scope.get("root_path", "")
        return json_response(document_with(prefix, desk.payloads.components()))

    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in ENDPOINTS:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    routes = [Route(f"{PREFIX}/openapi.json", answering(described), methods=["GET"])]
    for path, endpoints in by_path.items():
        for endpoint in endpoints:
            serve = answering(_serving(endpoint, desk, authenticator))
            routes.append(Route(f"{PREFIX}{path}", serve, methods=[endpoint.method]))

    async def nowhere(request: Request) -> Response:
        await admit(authenticator, request, Role.VIEWER)
        known = [e.method for e in ENDPOINTS if _fits(e.path, request.path_params["rest"])]
        if known:
            raise Refused(405, f"Use {' or '.join(known)}.")
        place = f"{request.scope.get('root_path', '')}{PREFIX}/openapi.json"
        raise Refused(404, f"There is nothing at {request.url.path[:200]}; see {place}.")

    every = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"]
    routes.append(Route(PREFIX + "{rest:path}", answering(nowhere), methods=every))
    return routes


def _fits(path: str, asked: str) -> bool:
    pattern = re.sub(r"{\w+}", "[^/]+", path.strip("/"))
    return re.fullmatch(pattern, asked.removeprefix("/")) is not None


def answering(serve: Answer) -> Answer:
    """Errors that users can meet become documents with a status."""

    async def answer(request: Request) -> Response:
        try:
            return await serve(request)
        except HANDLED as error:
            return json_response(problem_of(error), status_of(error), headers_of(error))

    return answer


def _serving(endpoint: Endpoint, desk: OperatorApi, authenticator: Authenticator) -> Answer:
    async def serve(request: Request) -> Response:
        who = await admit(authenticator, request, endpoint.role)
        query = body = None
        path = {
            name: msgspec.convert(value, PATH_TYPES.get(name, str))
            for name, value in request.path_params.items()
        }
        if endpoint.query is not None:
            query = msgspec.convert(dict(request.query_params), endpoint.query, strict=False)
        if endpoint.method == "POST":
            check_origin(request)
            content = await body_of(request)
            # What no form of another site can send, so no token is needed.
            if request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
                raise Refused(415, f"Send the body as {JSON}.")
            if endpoint.body is not None:
                body = msgspec.json.decode(content, type=endpoint.body)
        return json_response(await endpoint.call(desk, Ask(who, path, query, body)))

    return serve
