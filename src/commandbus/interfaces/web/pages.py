"""The pages. Each asks the desk, and is complete without a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import FINAL
from commandbus.domain.payload import Unreadable
from commandbus.domain.process.values import ProcessStatus
from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.actions import table
from commandbus.interfaces.search import QUALIFIERS
from commandbus.interfaces.web import charts
from commandbus.interfaces.web import schemas as v
from commandbus.interfaces.web.action_pages import (
    ActionPages,
    Content,
    Page,
    command_values,
    limit_values,
    offered,
    process_values,
    states_of,
    worker_actions,
)
from commandbus.interfaces.web.actions import OperatorApi
from commandbus.interfaces.web.admission import admit
from commandbus.interfaces.web.auth import Authenticator
from commandbus.interfaces.web.chart_pages import batch_bar, chosen_window, draw, marks_of
from commandbus.interfaces.web.csrf import COOKIE, FormTokens
from commandbus.interfaces.web.identity import Account, Role
from commandbus.interfaces.web.machines import usage_of
from commandbus.interfaces.web.paging import part_of
from commandbus.interfaces.web.payloads import fields_of
from commandbus.interfaces.web.problems import HANDLED, headers_of, status_of, text_of
from commandbus.interfaces.web.process_svg import draw_process
from commandbus.interfaces.web.timelines import draw_timeline
from commandbus.interfaces.web.views import Links, environment
from commandbus.interfaces.web.windows import SPANS, Point
from commandbus.settings import VERSION

NOTICE = "commandbus_notice"
PARKED_SECONDS = 60.0
"""How old the number beside the menu may be when a page is asked for; a live page refreshes it."""

ROWS = 30
"""Rows of a list with long entries: some ten screens of a phone."""
COMMANDS, LONG_ROWS, WORKERS, GROUPS = 40, 25, 15, 10
"""The same for lists whose entries are shorter or longer. A group is as long as three commands."""
OVERVIEW_DOMAINS, ATTENTION = 12, 12
"""Domains of the overview, first those that need attention; and lines that say so."""
DOMAIN_SCHEDULES = 5
"""Schedules that the page of a domain names."""
CALM = ("critical", "warning", "paused", "ok", "idle")
RECENT = timedelta(minutes=10)
"""Bulk actions of so long ago are listed beside what is parked."""
PREFERENCES = {"theme": ("light", "dark"), "times": ("local", "utc")}

MENU = (
    ("/", "Overview", "overview"),
    ("/domains", "Domains", "domains"),
    ("/commands", "Commands", "commands"),
    ("/troubleshooting", "Troubleshooting", "troubleshooting"),
    ("/batches", "Batches", "batches"),
    ("/processes", "Processes", "processes"),
    ("/schedules", "Schedules", "schedules"),
    ("/workers", "Workers", "workers"),
    ("/breakers", "Breakers", "breakers"),
    ("/audit", "Audit", "audit"),
    ("/system", "System", "system"),
)


class Pages:
    def __init__(
        self, desk: OperatorApi, authenticator: Authenticator, tokens: FormTokens, title: str
    ) -> None:
        self.desk = desk
        self._authenticator = authenticator
        self._tokens = tokens
        self._title = title
        self._environment = environment()
        self.actions = ActionPages(desk)

    def routes(self) -> list[Route]:
        pages: dict[str, Page] = {
            "/": self.overview,
            "/domains": self.domains,
            "/domains/{domain}": self.domain,
            "/commands": self.commands,
            "/commands/{domain}/{command_id}": self.command,
            "/troubleshooting": self.troubleshooting,
            "/bulk/{bulk_id}": self.bulk,
            "/batches": self.batches,
            "/batches/{batch_id}": self.batch,
            "/processes": self.processes,
            "/processes/{process_id}": self.process,
            "/schedules": self.schedules,
            "/workers": self.workers,
            "/breakers": self.breakers,
            "/audit": self.audit,
            "/system": self.system,
            "/send": self.send,
        }
        pages |= self.actions.pages()
        return [Route(path, self._serving(page), methods=["GET"]) for path, page in pages.items()]

    def _serving(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                who = await admit(self._authenticator, request, Role.VIEWER)
                name, content = await page(request, who)
                await self.desk.figures.now(fresh=PARKED_SECONDS)
            except HANDLED as error:
                return self.problem(request, error)
            return self.render(request, name, content, who)

        return serve

    def render(
        self, request: Request, name: str, content: dict[str, Any], who: Account, status: int = 200
    ) -> Response:
        cookie, token = self._tokens.issue(request, who.name)
        link = Links(request.scope.get("root_path", ""))
        notice = unquote(request.cookies.get(NOTICE, ""))
        page = self._environment.get_template(name).render(
            link=link,
            menu=self._menu(),
            title=self._title,
            version=VERSION,
            who=who,
            may_act=who.role is Role.OPERATOR,
            may_sign_out=self._authenticator.kind != "elsewhere",
            token=token,
            notice=notice,
            parked_count=self.desk.figures.parked,
            here=request.url.path.removeprefix(request.scope.get("root_path", "")) or "/",
            **_preferences(request),
            **content,
        )
        response = Response(page, status, media_type="text/html")
        _set_cookie(request, response, COOKIE, cookie)
        if notice:
            response.delete_cookie(NOTICE, path=link("/"))
        return response

    def _menu(self) -> tuple[tuple[str, str, str], ...]:
        return (*MENU, ("/send", "Send", "send")) if self.desk.payloads.known else MENU

    def problem(self, request: Request, error: Exception) -> Response:
        """An error as a page: the sign-in page where that helps. Strangers see no menu."""
        status = status_of(error)
        if status == 401 and self._authenticator.kind != "elsewhere":
            place = request.url.path.removeprefix(request.scope.get("root_path", ""))
            if request.url.query:
                place = f"{place}?{request.url.query}"
            is_page = request.method == "GET" and not place.startswith("/sign-in")
            return self.sign_in(request, error, place=place if is_page else "/")
        link = Links(request.scope.get("root_path", ""))
        page = self._environment.get_template("problem.html").render(
            link=link, title=self._title, version=VERSION, status=status, message=text_of(error),
            inside=status not in (401, 403), menu=self._menu(), notice="", here="", token="",
            may_act=False, who=None, parked_count=0, may_sign_out=False, **_preferences(request),
        )  # fmt: skip
        return Response(page, status, headers_of(error), media_type="text/html")

    def sign_in(
        self, request: Request, error: Exception, *, place: str, name: str = "", was_tried: bool = False
    ) -> Response:
        """The sign-in page, from which a browser goes on to a place of the dashboard."""
        cookie, token = self._tokens.issue(request, "")
        page = self._environment.get_template("sign_in.html").render(
            link=Links(request.scope.get("root_path", "")), title=self._title, version=VERSION,
            kind=self._authenticator.kind, token=token, name=name[:100], place=place[:2_000],
            problem=text_of(error) if was_tried else "", **_preferences(request),
        )  # fmt: skip
        response = Response(page, status_of(error), headers_of(error), media_type="text/html")
        _set_cookie(request, response, COOKIE, cookie)
        return response

    def redirect(self, request: Request, path: str, notice: str) -> Response:
        """To a page that tells what was done."""
        link = Links(request.scope.get("root_path", ""))
        response = RedirectResponse(link(path), 303)
        _set_cookie(request, response, NOTICE, quote(notice[:300], safe=""), 60)
        return response

    async def overview(self, request: Request, who: Account) -> Content:
        window = chosen_window(request)
        overview = await self.desk.overview()
        points = await self.desk.figures.points(window)
        marks = marks_of(await self.desk.starts())
        urgent = sorted(overview.domains, key=lambda view: CALM.index(view.health))[:OVERVIEW_DOMAINS]
        drawn = [
            (
                view,
                charts.sparkline(self.desk.figures.rates(view.domain), f"{view.rate:.1f} per second"),
            )
            for view in sorted(urgent, key=lambda view: view.domain)
        ]
        return "overview.html", {
            "overview": overview,
            "totals": _totals(overview, points),
            "charts": draw(window, points, marks),
            "domains": drawn,
            "calm": len(overview.domains) - len(drawn),
            "ATTENTION": ATTENTION,
            "window": window,
            "spans": list(SPANS),
        }

    async def domains(self, request: Request, who: Account) -> Content:
        shown = await self.desk.domains()
        named = {action.name: action for action in table.actions_of(table.DOMAIN)}
        part = part_of(request, shown.domains, ROWS)
        return "domains.html", {"domains": part, "left_out": shown.left_out, "acts": named}

    async def domain(self, request: Request, who: Account) -> Content:
        name, window = request.path_params["domain"], chosen_window(request)
        detail = await self.desk.domain(name)
        points = await self.desk.figures.points(window, name)
        schedules = (await self.desk.schedules()).schedules
        return "domain.html", {
            "view": detail.view,
            "stats": detail.stats,
            "limits": [(one, limit_values(one)) for one in (await self.desk.limits(name)).limits],
            "schedules": [one.schedule for one in schedules if one.schedule.domain == name],
            "SCHEDULES": DOMAIN_SCHEDULES,
            "of_many": [a for a in table.ACTIONS if a.many],
            "of_workers": table.actions_of(table.WORKER),
            "offered": offered(table.DOMAIN, {"paused" if detail.view.paused else "open"}),
            "of_limits": {action.name: action for action in table.actions_of(table.LIMIT)},
            "charts": draw(window, points, marks_of(await self.desk.starts(name))),
            "window": window,
            "spans": list(SPANS),
        }

    async def commands(self, request: Request, who: Account) -> Content:
        content: dict[str, Any] = {
            "query": request.query_params.get("q", ""),
            "qualifiers": QUALIFIERS,
            "problem": "",
            "first": "after" not in request.query_params,
            "of_many": [a for a in table.ACTIONS if a.many and not a.many.everything],
            "of_chosen": [a for a in table.ACTIONS if a.many],
            "views": await self.desk.views.list(),
            "page": v.SearchPage([], None, exhausted=True),
        }
        query = _query(request, v.CommandsQuery, COMMANDS)
        try:
            content["page"] = await self.desk.commands(query)
        except InvalidArgumentError as error:
            content["problem"] = str(error)
        return "commands.html", content

    async def command(self, request: Request, who: Account) -> Content:
        detail = await self.desk.command(request.path_params["domain"], _id(request, "command_id"))
        command, unreadable = detail.command, isinstance(detail.command.data, Unreadable)
        states = {str(command.status)} | ({"assigned"} if detail.case.assignee else set())
        if unreadable:
            states -= set(FINAL)  # what cannot be read cannot be sent again
        return "command.html", {
            "detail": detail,
            "command": command,
            "unreadable": unreadable,
            "offered": offered(table.COMMAND, states),
            "values": command_values(command) | {"assignee": detail.case.assignee},
        }

    async def troubleshooting(self, request: Request, who: Account) -> Content:
        query, now = _query(request, v.TroubleQuery, LONG_ROWS), datetime.now(UTC)
        groups = await self.desk.groups(query)
        return "troubleshooting.html", {
            "query": query,
            "groups": groups,
            "shown": part_of(request, groups.groups, GROUPS),
            "age": (now - groups.counted_at).total_seconds(),
            "page": await self.desk.troubleshooting(query),
            "domains": sorted(await self.desk.figures.now()),
            "of_many": [a for a in table.ACTIONS if a.many and a.many.everything],
            "bulks": [b for b in await self.desk.bulks.list() if now - b.saved_at < RECENT][:3],
            "now": now,
        }

    async def bulk(self, request: Request, who: Account) -> Content:
        bulk, now = await self.desk.bulks.get(request.path_params["bulk_id"]), datetime.now(UTC)
        ended = bulk.done + bulk.refused
        per_command = (now - bulk.began_at).total_seconds() / ended if ended else 0.0
        return "bulk.html", {
            "bulk": bulk,
            "state": bulk.state_at(now),
            "left": per_command * (bulk.matched - ended),
        }

    async def batches(self, request: Request, who: Account) -> Content:
        query = _query(request, v.BatchesQuery)
        page = await self.desk.batches(query)
        return "batches.html", {
            "query": query,
            "page": page,
            "bars": {batch.batch_id: batch_bar(batch) for batch in page.batches},
            "domains": sorted(await self.desk.figures.now()),
        }

    async def batch(self, request: Request, who: Account) -> Content:
        query = _query(request, v.BatchesQuery)
        detail = await self.desk.batch(_id(request, "batch_id"), query)
        return "batch.html", {
            "batch": detail.batch,
            "page": detail,
            "bar": batch_bar(detail.batch),
            "offered": offered(table.BATCH, {"open" if detail.batch.remaining else "ended"}),
        }

    async def processes(self, request: Request, who: Account) -> Content:
        query = _query(request, v.ProcessesQuery)
        return "processes.html", {
            "query": query,
            "page": await self.desk.processes(query),
            "statuses": list(ProcessStatus),
        }

    async def process(self, request: Request, who: Account) -> Content:
        detail = await self.desk.process(_id(request, "process_id"))
        return "process.html", {
            "process": detail.process,
            "trail": detail.trail,
            "drawing": draw_process(
                detail.process,
                detail.trail,
                self.desk.payloads.processes.get(detail.process.process_type),
            ),
            "timeline": draw_timeline(
                detail.process,
                detail.trail,
                await self.desk.step_trails(detail.process),
                datetime.now(UTC),
            ),
            "offered": offered(table.PROCESS, states_of(detail.process)),
            "values": process_values(detail.process),
        }

    async def schedules(self, request: Request, who: Account) -> Content:
        found = [
            (one, offered(table.SCHEDULE, {"enabled" if one.schedule.enabled else "disabled"}))
            for one in (await self.desk.schedules()).schedules
        ]
        return "schedules.html", {"schedules": part_of(request, found, ROWS)}

    async def workers(self, request: Request, who: Account) -> Content:
        workers, running = (await self.desk.workers()).workers, await self.desk.running()
        shown = [(one, usage_of(one), worker_actions(one)) for one in workers]
        gone = running.keys() - {one.name for one in workers}
        return "workers.html", {
            "workers": part_of(request, shown, WORKERS),
            "acts": table.actions_of(table.WORKER),
            "running": running,
            "orphans": [command for name in sorted(gone) for command in running[name]],
            "crashes": await self.desk.crashes(),
            "restarts": await self.desk.restarts(),
            "now": datetime.now(UTC),
        }

    async def breakers(self, request: Request, who: Account) -> Content:
        found = [
            (one, offered(table.BREAKER, {str(one.state)}))
            for one in (await self.desk.breakers()).breakers
        ]
        return "breakers.html", {
            "breakers": part_of(request, found, LONG_ROWS),
            "opening": next(a for a in table.actions_of(table.BREAKER) if a.exists == "may"),
        }

    async def audit(self, request: Request, who: Account) -> Content:
        view = request.query_params.get("view", "events")
        content: dict[str, Any] = {
            "view": view,
            "kinds": list(AuditEventType),
            "domains": sorted(await self.desk.figures.now()),
            "query": _query(request, v.AuditQuery, ROWS),
        }
        if view == "actions":
            content["page"] = await self.desk.actions(_query(request, v.ActionsQuery, ROWS))
        else:
            content["page"] = await self.desk.audit(content["query"])
        return "audit.html", content

    async def system(self, request: Request, who: Account) -> Content:
        return "system.html", {
            "system": await self.desk.system(),
            "acts": table.actions_of(table.STORE),
        }

    async def send(self, request: Request, who: Account) -> Content:
        return "send.html", self.send_form(
            request.query_params.get("domain", ""), request.query_params.get("type", "")
        )

    def send_form(
        self, domain: str, command_type: str, entered: dict[str, str] | None = None, problem: str = ""
    ) -> dict[str, Any]:
        handlers = self.desk.payloads.handlers()
        # A request that names none gets the first.
        wanted = (domain, command_type)
        fitting = (h for h in handlers if wanted in (("", ""), (h.domain, h.command_type)))
        chosen = next(fitting, None)
        return {
            "handlers": handlers,
            "chosen": chosen,
            "fields": fields_of(chosen.schema) if chosen else None,
            "entered": entered or {},
            "problem": problem,
        }


def _set_cookie(
    request: Request, response: Response, name: str, value: str, seconds: int | None = None
) -> None:
    path = Links(request.scope.get("root_path", ""))("/")
    response.set_cookie(name, value, max_age=seconds, path=path, httponly=True, samesite="strict",
                        secure=request.url.scheme == "https")  # fmt: skip


def _preferences(request: Request) -> dict[str, str]:
    """What the browser keeps about how pages look, where it is one of the choices."""
    kept = {name: request.cookies.get(f"commandbus_{name}", "") for name in PREFERENCES}
    return {name: value if value in PREFERENCES[name] else "" for name, value in kept.items()}


def _totals(overview: v.Overview, points: list[Point | None]) -> dict[str, Any]:
    domains = overview.domains
    ages = [view.oldest_ready_age for view in domains if view.oldest_ready_age is not None]
    return {
        "rate": sum(view.rate for view in domains),
        "oldest": max(ages, default=None),
        "ready": sum(view.ready for view in domains),
        "scheduled": sum(view.scheduled for view in domains),
        "running": sum(view.running for view in domains),
        "parked": sum(view.parked for view in domains),
        "completed": sum(view.completed for view in domains),
        "failed": sum(view.failed for view in domains),
        "latency": next((point.run_p95 for point in reversed(points) if point), None),
    }


def _query(request: Request, kind: Any, limit: int | None = None) -> Any:
    """The query as its type; an empty field of a form means that it was not given."""
    given = {key: value for key, value in request.query_params.items() if value != ""}
    if limit is not None:
        given.setdefault("limit", str(limit))
    return msgspec.convert(given, kind, strict=False)


def _id(request: Request, name: str) -> UUID:
    return msgspec.convert(request.path_params[name], UUID)
