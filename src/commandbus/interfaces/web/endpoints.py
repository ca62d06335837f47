"""The endpoints of the API: the reads, and every row of the table of actions. Routes, checks and the
OpenAPI document are made from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal
from uuid import UUID

import msgspec

from commandbus.interfaces.actions.answers import ANSWERS, Report, Sent, report_of
from commandbus.interfaces.actions.model import Action
from commandbus.interfaces.actions.table import ACTIONS
from commandbus.interfaces.web import schemas as v
from commandbus.interfaces.web.actions import OperatorApi
from commandbus.interfaces.web.bodies import body_of, given_by
from commandbus.interfaces.web.identity import Account, Role


class Ask(msgspec.Struct, frozen=True):
    """A request, checked: who asks; path, query and body by their types."""

    who: Account
    path: dict[str, Any]
    query: Any
    body: Any


class Endpoint(msgspec.Struct, frozen=True):
    method: Literal["GET", "POST"]
    path: str
    summary: str
    answers: Any
    call: Callable[[OperatorApi, Ask], Awaitable[Any]]
    query: Any = None
    body: Any = None

    @property
    def role(self) -> Role:
        return Role.VIEWER if self.method == "GET" else Role.OPERATOR

    @property
    def name(self) -> str:
        """Unique, for generated clients."""
        words = [p.strip("{}").replace("-", "_") for p in self.path.split("/") if p]
        return "_".join([self.method.lower(), *words])


PATH_TYPES: dict[str, Any] = {"command_id": UUID, "batch_id": UUID, "process_id": UUID}
"""Parts of a path that are more than text."""


async def _handlers(desk: OperatorApi, ask: Ask) -> v.Handlers:
    return v.Handlers(desk.payloads.handlers())


COMMAND, BATCH = "/commands/{domain}/{command_id}", "/batches/{batch_id}"

READS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/overview", "What needs attention, and every domain.", v.Overview,
             lambda d, a: d.overview()),
    Endpoint("GET", "/history", "Figures over time.", v.History,
             lambda d, a: d.history(a.query), query=v.HistoryQuery),
    Endpoint("GET", "/domains", "Every domain and how it is doing.", v.Domains,
             lambda d, a: d.domains()),
    Endpoint("GET", "/domains/{domain}", "A domain in full.", v.DomainDetail,
             lambda d, a: d.domain(a.path["domain"])),
    Endpoint("GET", "/handlers", "Command types that the registry knows, with their schemas.",
             v.Handlers, _handlers),
    Endpoint("GET", "/commands", "Commands by a filter, newest first.", v.SearchPage,
             lambda d, a: d.commands(a.query), query=v.CommandsQuery),
    Endpoint("POST", "/commands", "Send a command.", Sent,
             lambda d, a: d.send(a.body, a.who), body=v.SendBody),
    Endpoint("GET", COMMAND, "A command: record, trail, why, related commands.", v.CommandDetail,
             lambda d, a: d.command(a.path["domain"], a.path["command_id"])),
    Endpoint("GET", "/troubleshooting", "Parked commands, newest first.", v.Trouble,
             lambda d, a: d.troubleshooting(a.query), query=v.TroubleQuery),
    Endpoint("GET", "/troubleshooting/count", "How many commands are parked.", v.Parked,
             lambda d, a: d.parked()),
    Endpoint("GET", "/troubleshooting/groups", "Parked commands by how they failed.", v.Groups,
             lambda d, a: d.groups(a.query), query=v.TroubleQuery),
    Endpoint("GET", "/batches", "Batches, newest first.", v.Batches,
             lambda d, a: d.batches(a.query), query=v.BatchesQuery),
    Endpoint("GET", BATCH, "A batch and its commands.", v.BatchDetail,
             lambda d, a: d.batch(a.path["batch_id"], a.query),
             query=v.BatchesQuery),
    Endpoint("GET", "/processes", "Processes, newest first.", v.Processes,
             lambda d, a: d.processes(a.query), query=v.ProcessesQuery),
    Endpoint("GET", "/processes/{process_id}", "A process and its trail.", v.ProcessDetail,
             lambda d, a: d.process(a.path["process_id"])),
    Endpoint("GET", "/schedules", "Every schedule, with its next and last run.", v.Schedules,
             lambda d, a: d.schedules()),
    Endpoint("GET", "/limits", "Every limit that is set.", v.Limits, lambda d, a: d.limits()),
    Endpoint("GET", "/workers", "Workers that reported themselves recently.", v.Workers,
             lambda d, a: d.workers()),
    Endpoint("GET", "/breakers", "Every breaker that ever opened.", v.Breakers,
             lambda d, a: d.breakers()),
    Endpoint("GET", "/audit", "What happened to commands, newest first.", v.Audit,
             lambda d, a: d.audit(a.query), query=v.AuditQuery),
    Endpoint("GET", "/actions", "What people did, newest first.", v.Actions,
             lambda d, a: d.actions(a.query), query=v.ActionsQuery),
    Endpoint("GET", "/system", "Versions, the store, and the doctor's findings.", v.System,
             lambda d, a: d.system()),
)  # fmt: skip


def _one(action: Action) -> Endpoint:
    async def call(desk: OperatorApi, ask: Ask) -> Any:
        return (await desk.act(action, ask.path | given_by(ask.body), ask.who))[0]

    body = body_of(action)
    return Endpoint("POST", action.path, action.summary, ANSWERS[action.answers], call, body=body)


def _many(action: Action) -> Endpoint:
    async def call(desk: OperatorApi, ask: Ask) -> Report:
        given = given_by(ask.body)
        preview: bool = given.pop("preview")
        return report_of(await desk.act_on_many(action, given, ask.who, preview=preview), preview)

    summary = f"The same for many {action.many.noun if action.many else ''}s: {action.summary}"
    body = body_of(action, many=True)
    return Endpoint("POST", action.list_path, summary, Report, call, body=body)


ENDPOINTS: tuple[Endpoint, ...] = (
    *READS,
    *(_one(action) for action in ACTIONS),
    *(_many(action) for action in ACTIONS if action.many is not None),
)
