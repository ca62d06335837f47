"""Neither page nor API: static files, hints, metrics, and the answers for everything else."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from commandbus.interfaces.web.actions import OperatorApi
from commandbus.interfaces.web.admission import admit, secure
from commandbus.interfaces.web.api import answering, json_response
from commandbus.interfaces.web.auth import Authenticator
from commandbus.interfaces.web.identity import Role
from commandbus.interfaces.web.pages import Pages
from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.stream import Stream
from commandbus.interfaces.web.views import HERE
from commandbus.observe.exposition import write_sent
from commandbus.observe.store import write_store
from commandbus.observe.text import CONTENT_TYPE, Exposition

SCRIPT = "text/javascript"
STATIC = {
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    "charts.js": SCRIPT,
    "desk.js": SCRIPT,
    "live.js": SCRIPT,
}


class OtherRoutes:
    def __init__(self, desk: OperatorApi, pages: Pages, authenticator: Authenticator) -> None:
        self._desk = desk
        self._pages = pages
        self._authenticator = authenticator
        self._stream = Stream(desk.figures)

    def routes(self) -> list[Route]:
        asked = {"/static/{name}": self.static, "/stream": self.hints, "/metrics": self.metrics}
        return [Route(path, answering(serve)) for path, serve in asked.items()]

    async def static(self, request: Request) -> Response:
        self._authenticator.check_reach(request)  # the sign-in page needs them, too
        name = request.path_params["name"]
        if name not in STATIC:
            raise Refused(404, "There is no such file.")
        headers = {"cache-control": "private, max-age=3600"}
        return FileResponse(HERE / "static" / name, media_type=STATIC[name], headers=headers)

    async def hints(self, request: Request) -> Response:
        who = await admit(self._authenticator, request, Role.VIEWER)
        self._stream.check(who.name)

        async def is_allowed() -> bool:
            """A session may end, and an account be removed, while its stream is open."""
            try:
                return (await admit(self._authenticator, request, Role.VIEWER)).name == who.name
            except Refused:
                return False

        events = self._stream.events(who.name, is_allowed)
        return StreamingResponse(events, 200, {"x-accel-buffering": "no"}, "text/event-stream")

    async def metrics(self, request: Request) -> Response:
        await admit(self._authenticator, request, Role.VIEWER)
        breakers, workers = await self._desk.breakers(), await self._desk.workers()
        schedules = (await self._desk.schedules()).schedules
        engine = self._desk.stores.url.partition(":")[0]
        samples = await self._desk.figures.now()
        processes = await (await self._desk.stores.reading()).count_processes()
        out = Exposition()
        write_store(out, samples, breakers.breakers, workers.workers, schedules, processes, engine)
        write_sent(out, (await self._desk.stores.acting(patient=True)).scope.sent)
        counts = self._authenticator.counts
        out.add(
            "dashboard_sign_ins_total",
            "counter",
            "Sign-ins to the dashboard by their outcome.",
            *(({"outcome": name}, counts[name]) for name in ("succeeded", "failed", "throttled")),
        )
        return Response(out.text(), headers={"content-type": CONTENT_TYPE})

    async def nowhere(self, request: Request, error: Exception | None = None) -> Response:
        """Without an identity, an address that exists and one that does not are answered alike."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        try:
            await admit(self._authenticator, request, Role.VIEWER)
            raise Refused(status, "There is no such page, or it cannot be used like this.")
        except Refused as refused:
            return self._pages.problem(request, refused)

    async def broken(self, request: Request, error: Exception) -> Response:
        """A mistake of ours; the server logs it. This answer is outside of all middleware."""
        problem = {"error": "InternalError", "message": "The request failed; the log says why."}
        response = json_response(problem, 500)
        secure(response.headers, request.url.scheme)
        return response
