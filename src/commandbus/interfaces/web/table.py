"""The one table of the API: every read and every action, with what it takes and what it answers.

Routes, checks and the OpenAPI document are made from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal
from uuid import UUID

import msgspec

from commandbus.interfaces.web import values as v
from commandbus.interfaces.web.actions import Desk
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
    call: Callable[[Desk, Ask], Awaitable[Any]]
    query: Any = None
    body: Any = None

    @property
    def role(self) -> Role:
        return Role.VIEWER if self.method == "GET" else Role.OPERATOR

    @property
    def name(self) -> str:
        """Unique, for generated clients."""
        words = [p.strip("{}") for p in self.path.split("/") if p]
        return "_".join([self.method.lower(), *words])


PATH_TYPES: dict[str, Any] = {"command_id": UUID, "batch_id": UUID, "process_id": UUID}
"""Parts of a path that are more than text."""


async def _handlers(desk: Desk, ask: Ask) -> v.Handlers:
    return v.Handlers(desk.payloads.handlers())


def _schedule(change: str) -> Callable[[Desk, Ask], Awaitable[Any]]:
    return lambda desk, ask: desk.change_schedule(ask.path["name"], change, ask.who)


COMMAND, BATCH = "/commands/{domain}/{command_id}", "/batches/{batch_id}"

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/overview", "What needs attention, and every domain.", v.Overview,
             lambda d, a: d.overview()),
    Endpoint("GET", "/history", "Figures over time.", v.History,
             lambda d, a: d.history(a.query), query=v.HistoryQuery),
    Endpoint("GET", "/domains", "Every domain and how it is doing.", v.Domains,
             lambda d, a: d.domains()),
    Endpoint("GET", "/domains/{domain}", "A domain in full.", v.DomainDetail,
             lambda d, a: d.domain(a.path["domain"])),
    Endpoint("POST", "/domains/{domain}/pause", "Stop giving out commands of a domain.", v.Done,
             lambda d, a: d.pause(a.path["domain"], a.body, a.who), body=v.ReasonBody),
    Endpoint("POST", "/domains/{domain}/resume", "Give out commands of a domain again.", v.Done,
             lambda d, a: d.resume(a.path["domain"], a.who)),
    Endpoint("GET", "/handlers", "Command types that the registry knows, with their schemas.",
             v.Handlers, _handlers),
    Endpoint("GET", "/commands", "Commands by a filter, newest first.", v.SearchPage,
             lambda d, a: d.commands(a.query), query=v.CommandsQuery),
    Endpoint("POST", "/commands", "Send a command.", v.Sent,
             lambda d, a: d.send(a.body, a.who), body=v.SendBody),
    Endpoint("GET", COMMAND, "A command: record, trail, why, related commands.", v.CommandDetail,
             lambda d, a: d.command(a.path["domain"], a.path["command_id"])),
    Endpoint("POST", f"{COMMAND}/cancel", "Cancel a command; one that runs is asked to stop.", v.Done,
             lambda d, a: d.cancel(a.path["domain"], a.path["command_id"], a.body, a.who),
             body=v.CancelBody),
    Endpoint("POST", f"{COMMAND}/reschedule", "Let a waiting command become due at another time.",
             v.Done, lambda d, a: d.reschedule(a.path["domain"], a.path["command_id"], a.body, a.who),
             body=v.RescheduleBody),
    Endpoint("POST", f"{COMMAND}/reprioritise", "Give a waiting command another priority.", v.Done,
             lambda d, a: d.reprioritise(a.path["domain"], a.path["command_id"], a.body, a.who),
             body=v.ReprioritiseBody),
    Endpoint("POST", f"{COMMAND}/resend", "Send an ended command again, as a new command.", v.Sent,
             lambda d, a: d.resend(a.path["domain"], a.path["command_id"], a.body, a.who),
             body=v.RetryBody),
    Endpoint("POST", f"{COMMAND}/retry", "Send a parked command back to work.", v.Done,
             lambda d, a: d.retry(a.path["domain"], a.path["command_id"], a.body, a.who),
             body=v.RetryBody),
    Endpoint("POST", f"{COMMAND}/complete", "End a parked command as completed.", v.Done,
             lambda d, a: d.complete(a.path["domain"], a.path["command_id"], a.body, a.who),
             body=v.CompleteBody),
    Endpoint("POST", f"{COMMAND}/comment", "Say something about a command, in its trail.", v.Done,
             lambda d, a: d.comment(a.path["domain"], a.path["command_id"], a.body, a.who),
             body=v.CommentBody),
    Endpoint("POST", f"{COMMAND}/assign", "Say who takes care of a parked command.", v.Done,
             lambda d, a: d.assign(a.path["domain"], a.path["command_id"], a.body, a.who),
             body=v.AssignBody),
    Endpoint("GET", "/troubleshooting", "Parked commands, newest first.", v.Trouble,
             lambda d, a: d.troubleshooting(a.query), query=v.TroubleQuery),
    Endpoint("GET", "/troubleshooting/groups", "Parked commands by how they failed.", v.Groups,
             lambda d, a: d.groups(a.query), query=v.TroubleQuery),
    Endpoint("POST", "/troubleshooting/bulk", "Act on many parked commands, or preview it.",
             v.BulkAnswer, lambda d, a: d.bulk(a.body, a.who), body=v.BulkBody),
    Endpoint("GET", "/batches", "Batches, newest first.", v.Batches,
             lambda d, a: d.batches(a.query), query=v.BatchesQuery),
    Endpoint("GET", BATCH, "A batch and its commands.", v.BatchDetail,
             lambda d, a: d.batch(a.path["batch_id"], a.query),
             query=v.BatchesQuery),
    Endpoint("POST", f"{BATCH}/cancel", "Cancel the commands of a batch that have not ended.",
             v.Done, lambda d, a: d.cancel_batch(a.path["batch_id"], a.body, a.who),
             body=v.CancelBody),
    Endpoint("GET", "/processes", "Processes, newest first.", v.Processes,
             lambda d, a: d.processes(a.query), query=v.ProcessesQuery),
    Endpoint("GET", "/processes/{process_id}", "A process and its trail.", v.ProcessDetail,
             lambda d, a: d.process(a.path["process_id"])),
    Endpoint("POST", "/processes/{process_id}/cancel", "Call a process off.", v.Done,
             lambda d, a: d.cancel_process(a.path["process_id"], a.body, a.who), body=v.CancelBody),
    Endpoint("POST", "/processes/{process_id}/retry", "Let a process that is stuck try again.", v.Done,
             lambda d, a: d.retry_process(a.path["process_id"], a.who)),
    Endpoint("POST", "/processes/{process_id}/skip", "Go on without a compensation that failed.",
             v.Done, lambda d, a: d.skip_compensation(a.path["process_id"], a.body, a.who),
             body=v.CancelBody),
    Endpoint("GET", "/schedules", "Every schedule, with its next and last run.", v.Schedules,
             lambda d, a: d.schedules()),
    Endpoint("POST", "/schedules/{name}/enable", "Let a schedule send again.", v.Done,
             _schedule("enable")),
    Endpoint("POST", "/schedules/{name}/disable", "Stop a schedule.", v.Done, _schedule("disable")),
    Endpoint("POST", "/schedules/{name}/trigger", "Send a schedule's command now.", v.Done,
             _schedule("trigger")),
    Endpoint("POST", "/schedules/{name}/delete", "Forget a schedule.", v.Done, _schedule("delete")),
    Endpoint("GET", "/workers", "Workers that reported themselves lately.", v.Workers,
             lambda d, a: d.workers()),
    Endpoint("GET", "/breakers", "Every breaker that ever opened.", v.Breakers,
             lambda d, a: d.breakers()),
    Endpoint("POST", "/breakers/{target}/open", "Stop calling a target.", v.Done,
             lambda d, a: d.open_breaker(a.path["target"], a.body, a.who), body=v.BreakerBody),
    Endpoint("POST", "/breakers/{target}/reset", "Call a target again.", v.Done,
             lambda d, a: d.reset_breaker(a.path["target"], a.body, a.who), body=v.ReasonBody),
    Endpoint("GET", "/audit", "What happened to commands, newest first.", v.Audit,
             lambda d, a: d.audit(a.query), query=v.AuditQuery),
    Endpoint("GET", "/actions", "What people did, newest first.", v.Actions,
             lambda d, a: d.actions(a.query), query=v.ActionsQuery),
    Endpoint("GET", "/system", "Versions, the store, and the doctor's findings.", v.System,
             lambda d, a: d.system()),
)  # fmt: skip
