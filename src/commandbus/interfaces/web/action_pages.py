"""Pages of actions: a form for each row of the table, and the preview of an action on many commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from starlette.requests import Request

from commandbus.domain.command import CommandRecord
from commandbus.domain.limits import Limit, rate_and_unit
from commandbus.domain.payload import Unreadable
from commandbus.domain.presence import WorkerInfo, WorkerState
from commandbus.domain.process.values import ProcessRecord
from commandbus.interfaces.actions.model import Action, Kind, Many, Param, Subject
from commandbus.interfaces.actions.table import ACTIONS, COMMAND, SCHEDULE, WORKER, actions_of
from commandbus.interfaces.cli.text import as_json, plural
from commandbus.interfaces.web.actions import OperatorApi
from commandbus.interfaces.web.bodies import entered
from commandbus.interfaces.web.bulk import Bulk, new_bulk
from commandbus.interfaces.web.identity import Account
from commandbus.interfaces.web.schemas import TroubleQuery
from commandbus.interfaces.web.views import segment
from commandbus.operations.bulk_troubleshooting import BulkReport, FailureGroup
from commandbus.store.reading import UNREADABLE

Content = tuple[str, dict[str, Any]]
"""The name of a template and what it shows."""
Page = Callable[[Request, Account], Awaitable[Content]]
COUNTED_MAX = 1_000
"""Commands that meet a filter are counted no further for a preview: each has to be read."""


class ActionPages:
    def __init__(self, desk: OperatorApi) -> None:
        self._desk = desk

    def pages(self) -> dict[str, Page]:
        found: dict[str, Page] = {}
        for action in ACTIONS:
            found[action.path] = self._form(action)
            if action.exists != "must":
                found[action.list_path] = self._form(action)
            if action.many is not None:
                found[action.list_path] = self._preview(action)
        return found

    def _form(self, action: Action) -> Page:
        """An action on a page of its own, with the present values of its subject, else with those that
        the link to it has."""

        async def page(request: Request, who: Account) -> Content:
            keys, query = keys_of(request), request.query_params
            known = (*action.subject.keys, *action.params)
            values: dict[str, Any] = {p.name: query[p.name] for p in known if p.name in query}
            if action.subject is SCHEDULE and keys and action.exists == "must":
                record = self._desk.redaction.schedule(await self._desk.raw_schedule(keys["name"]))
                values = {p.name: _written(p, getattr(record.schedule, p.name)) for p in action.params}
            elif action.subject is COMMAND and keys:
                values = command_values((await self._desk.command(**keys)).command)
            return "action.html", self.form(action, keys, values)

        return page

    def form(
        self, action: Action, keys: dict[str, Any], values: dict[str, Any], problem: str = ""
    ) -> dict[str, Any]:
        """`values` are what its fields begin with."""
        asked = [key for key in action.subject.keys if key.name not in keys]
        segments = {name: segment(value) for name, value in keys.items()}
        return {
            "action": action,
            "asked": asked,
            "place": (action.list_path if asked else action.path).format(**segments),
            "up": action.subject.listed if asked else action.subject.shown.format(**segments),
            "what": "" if asked else " ".join(map(str, keys.values())),
            "word": action.confirm.format(**keys) if action.confirm else "",
            "values": values,
            "problem": problem,
        }

    def _preview(self, action: Action) -> Page:
        """How many commands an action would be for, before it is carried out."""

        async def page(request: Request, who: Account) -> Content:
            query = dict(request.query_params)
            query["command_ids"] = "\n".join(request.query_params.getlist("command_ids"))
            return "many.html", await self.preview(action, query, who)

        return page

    async def preview(
        self, action: Action, query: dict[str, str], who: Account, problem: str = ""
    ) -> dict[str, Any]:
        """The commands that a query means, and a form with its parameters. After a `problem` the query
        is what was entered; parameters that cannot be read do not matter for the preview."""
        many = action.many
        assert many is not None
        chosen = entered(many.conditions, query)
        began = {p.name: p.initial for p in action.params if p.initial}
        others = (*many.params, *action.params)
        given = entered(others, began if problem else began | query) | chosen | everything(many, query)
        groups = await self._failures(chosen) if many.everything else []
        is_bounded = not many.everything and not given.get("command_ids") and "limit" not in given
        if many.everything and "command_ids" not in chosen and {"error_code", "group"} & chosen.keys():
            found = sum(group.count for group in groups)  # they need not be counted once more
            report: Any = BulkReport(min(found, given.get("limit", found)), 0, 0, stopped=False)
        else:
            counted = given | {"limit": COUNTED_MAX} if is_bounded else given
            report = await self._desk.act_on_many(action, counted, who, preview=True)
        is_more = is_bounded and report.matched == COUNTED_MAX
        shown = {p.label: query[p.name] for p in many.conditions[1:] if p.name in chosen}
        if "group" in chosen and groups:
            shown["Group"] = f"{groups[0].error_code} ({groups[0].fingerprint})"
        return {
            "action": action,
            "many": many,
            "report": report,
            "matched": f"{report.matched:,}+ commands"
            if is_more
            else plural(report.matched, "command"),
            "chosen": shown,
            "groups": groups,
            "hidden": {p.name: query[p.name] for p in many.conditions[1:] if p.name in chosen}
            | dict.fromkeys(everything(many, query), "on"),
            "ids": chosen.get("command_ids", []),
            "examples": self._desk.listed(getattr(report, "examples", [])),
            "fields": [p for p in others if not p.one_only],
            "values": began | query,
            "limit": given.get("limit"),
            "problem": problem,
        }

    async def _failures(self, chosen: dict[str, Any]) -> list[FailureGroup]:
        """How the parked commands that meet the conditions failed; not of those chosen by id."""
        if "command_ids" in chosen:
            return []
        query = TroubleQuery(chosen.get("domain"), chosen.get("command_type"))
        return [
            group
            for group in (await self._desk.groups(query)).groups
            if chosen.get("error_code") in (None, group.error_code)
            and chosen.get("group") in (None, group.fingerprint)
        ]


def everything(many: Many, query: dict[str, str]) -> dict[str, Any]:
    """Whether all parked commands are meant, without any condition."""
    return {"everything": True} if many.everything and query.get("everything") == "on" else {}


def bulk_of(content: dict[str, Any], given: dict[str, Any], who: Account) -> Bulk:
    """The bulk action that the form of a preview begins."""
    action, ids = content["action"], content["ids"]
    conditions = {"Filter" if name == "Q" else name: text for name, text in content["chosen"].items()}
    if ids:
        conditions["Chosen"] = f"{len(ids):,} commands"
    if canary := given.get("canary"):
        conditions["Canary"] = f"{canary:,} first"
    again = "" if ids else f"{action.list_path}?{urlencode(content['hidden'])}"
    title, matched = action.verb.capitalize(), content["report"].matched
    return new_bulk(title, conditions, again, who.name, given["reason"], matched)


def offered(subject: Subject, states: set[str]) -> list[Action]:
    """The actions that the page of a subject in these states shows; existing ones only."""
    return [
        action
        for action in actions_of(subject)
        if action.offered and action.exists != "created" and action.fits(states)
    ]


def worker_actions(worker: WorkerInfo) -> list[Action]:
    """What can be asked of a worker now; nothing of a process router."""
    asked = worker.requested.state
    state = worker.state if asked is WorkerState.RUNNING and not worker.claims else asked
    return [] if worker.processes else offered(WORKER, {str(state)})


def command_values(command: CommandRecord) -> dict[str, Any]:
    """What the forms of a command begin with; a payload that cannot be read is not repeated."""
    is_unreadable = isinstance(command.data, Unreadable)
    data = "" if is_unreadable else as_json(command.data)
    return {"data": data, "priority": command.priority}


def limit_values(limit: Limit) -> dict[str, Any]:
    """What the form of a limit begins with when this one is changed."""
    values: dict[str, Any] = {
        "command_type": limit.command_type,
        "per_key": "on" if limit.per_key else None,
        "per_sender": "on" if limit.per_sender else None,
        "concurrency": limit.concurrency,
    }
    if limit.rate is None:
        return values
    number, unit = rate_and_unit(limit.rate)
    return values | {"rate": f"{number:.9g}", "per": f"1{unit[0]}", "burst": limit.burst}


def states_of(process: ProcessRecord) -> set[str]:
    if process.finished_at is not None:
        return set()
    is_undoing = process.status == "COMPENSATING" or any(step.compensates for step in process.steps)
    states = set() if is_undoing else {"forward"}
    if process_values(process):
        states.add("waits for a signal")
    if process.status == "WAITING_FOR_TROUBLESHOOTING":
        states |= {"stuck"} | ({"compensation failed"} if process.compensation_failed else set())
    if "stuck" in states or (process.error is not None and process.error.code == UNREADABLE):
        states.add("cannot go on")
    return states


def process_values(process: ProcessRecord) -> dict[str, Any]:
    """What the forms of a process begin with: the first signal that it waits for."""
    waits = [s.domain for s in process.steps if s.kind == "signal" and s.status == "PENDING"]
    return {"signal": waits[0]} if waits else {}


def _written(param: Param, value: Any) -> str:
    """A value as it would be entered."""
    if param.kind is Kind.DOCUMENT:
        return as_json(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def keys_of(request: Request) -> dict[str, Any]:
    """The parts of an address that name a subject."""
    return {
        name: msgspec.convert(value, UUID if name.endswith("_id") else str)
        for name, value in request.path_params.items()
    }
