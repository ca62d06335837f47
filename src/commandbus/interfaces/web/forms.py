"""What forms do: the fields of a form become the same values that the API takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commandbus.errors import CommandBusError, InvalidArgumentError
from commandbus.interfaces.cli.text import parse_duration, plural
from commandbus.interfaces.web import values as v
from commandbus.interfaces.web.actions import Desk
from commandbus.interfaces.web.auth import Authenticator
from commandbus.interfaces.web.forgery import FIELD, FormTokens, check_origin
from commandbus.interfaces.web.gate import admit, body_of
from commandbus.interfaces.web.identity import Account, Role
from commandbus.interfaces.web.pages import Pages
from commandbus.interfaces.web.payloads import fields_of
from commandbus.interfaces.web.problems import HANDLED
from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.views import segment

PAST = {"retry": "sent back to work", "cancel": "canceled", "complete": "completed"}

Form = dict[str, str]
Act = Callable[[Request, Form, Account], Awaitable[Response]]


class Forms:
    """Every form goes back to a page that says what was done."""

    def __init__(
        self, desk: Desk, pages: Pages, authenticator: Authenticator, tokens: FormTokens
    ) -> None:
        self._desk = desk
        self._pages = pages
        self._authenticator = authenticator
        self._tokens = tokens

    def routes(self) -> list[Route]:
        acts: dict[str, Act] = {
            "/domains/{domain}/{change}": self.domain,
            "/commands/{domain}/{command_id}/{change}": self.command,
            "/troubleshooting/bulk": self.bulk,
            "/batches/{batch_id}/cancel": self.batch,
            "/processes/{process_id}/{change}": self.process,
            "/schedules/{name}/{change}": self.schedule,
            "/breakers": self.open_breaker,
            "/breakers/{target}/reset": self.reset_breaker,
            "/send": self.send,
        }
        return [Route(path, self._serving(act), methods=["POST"]) for path, act in acts.items()]

    def _serving(self, act: Act) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                who = await admit(self._authenticator, request, Role.OPERATOR)
                check_origin(request)
                content = (await body_of(request)).decode("utf-8", "replace")
                pairs = parse_qsl(content, keep_blank_values=True, max_num_fields=6_000)
                form = dict(pairs)
                form["command_ids"] = "\n".join(value for key, value in pairs if key == "command_ids")
                self._tokens.check(request, form.get(FIELD, ""), who.name)
                return await act(request, form, who)
            except HANDLED as error:
                return self._pages.problem(request, error)
            except ValueError:  # more fields than anybody fills in
                return self._pages.problem(request, Refused(422, "The form cannot be read."))

        return serve

    async def domain(self, request: Request, form: Form, who: Account) -> Response:
        name = request.path_params["domain"]
        match request.path_params["change"]:
            case "pause":
                done = await self._desk.pause(name, v.ReasonBody(_optional(form, "reason")), who)
            case "resume":
                done = await self._desk.resume(name, who)
            case other:
                raise Refused(404, f"A domain cannot be asked to {other[:40]}.")
        back = form.get("back", "")
        place = back if back in ("/", "/domains") else f"/domains/{segment(name)}"
        return self._pages.redirect(request, place, done.done)

    async def command(self, request: Request, form: Form, who: Account) -> Response:
        domain = request.path_params["domain"]
        command_id = msgspec.convert(request.path_params["command_id"], UUID)
        reason = _optional(form, "reason")
        match request.path_params["change"]:
            case "retry":
                retry = v.RetryBody(reason)
                if "data" in form:
                    retry = v.RetryBody(reason, _document(form["data"], "The payload"))
                done = await self._desk.retry(domain, command_id, retry, who)
            case "cancel":
                because = v.CancelBody(reason or "canceled in the dashboard")
                done = await self._desk.cancel(domain, command_id, because, who)
            case "reschedule":
                delay = _seconds(form.get("delay") or "0s")
                done = await self._desk.reschedule(
                    domain, command_id, v.RescheduleBody(delay, reason=reason), who
                )
            case "reprioritise":
                rank = v.ReprioritiseBody(_rank(form.get("priority", "")), reason)
                done = await self._desk.reprioritise(domain, command_id, rank, who)
            case "resend":
                body = v.RetryBody(reason, _document(form.get("data") or "null", "The payload"))
                sent = await self._desk.resend(domain, command_id, body, who)
                told = "A command holds its unique key." if sent.duplicate else "It was sent again."
                place = f"/commands/{segment(sent.domain)}/{sent.command_id}"
                return self._pages.redirect(request, place, told)
            case "complete":
                result = _document(form.get("result") or "null", "The result")
                done = await self._desk.complete(
                    domain, command_id, v.CompleteBody(result, reason), who
                )
            case "comment":
                said = v.CommentBody(form.get("text", "").strip())
                done = await self._desk.comment(domain, command_id, said, who)
            case "assign":
                to = v.AssignBody(_optional(form, "assignee"))
                done = await self._desk.assign(domain, command_id, to, who)
            case other:
                raise Refused(404, f"A command cannot be asked to {other[:40]}.")
        place = f"/commands/{segment(domain)}/{command_id}"
        return self._pages.redirect(request, place, f"The command was {done.done}.")

    async def bulk(self, request: Request, form: Form, who: Account) -> Response:
        given: dict[str, Any] = {
            key: value for key, value in form.items() if value and key not in (FIELD, "command_ids")
        }
        if form["command_ids"]:
            given["command_ids"] = form["command_ids"].split("\n")
        body = msgspec.convert(given, v.BulkBody, strict=False)
        answer = await self._desk.bulk(body, who)
        told = f"{plural(answer.done, 'command')} {PAST[body.action]}."
        if answer.refused:
            told += f" {plural(answer.refused, 'command')} had been taken care of by somebody else."
        return self._pages.redirect(request, "/troubleshooting", told)

    async def batch(self, request: Request, form: Form, who: Account) -> Response:
        batch_id = msgspec.convert(request.path_params["batch_id"], UUID)
        body = v.CancelBody(_optional(form, "reason") or "the batch was canceled")
        done = await self._desk.cancel_batch(batch_id, body, who)
        return self._pages.redirect(request, f"/batches/{batch_id}", done.done)

    async def process(self, request: Request, form: Form, who: Account) -> Response:
        process_id = msgspec.convert(request.path_params["process_id"], UUID)
        body = v.CancelBody(_optional(form, "reason") or "decided in the dashboard")
        match request.path_params["change"]:
            case "retry":
                done = await self._desk.retry_process(process_id, who)
            case "skip":
                done = await self._desk.skip_compensation(process_id, body, who)
            case "cancel":
                done = await self._desk.cancel_process(process_id, body, who)
            case other:
                raise Refused(404, f"A process cannot be asked to {other[:40]}.")
        return self._pages.redirect(
            request, f"/processes/{process_id}", f"The process was {done.done}."
        )

    async def schedule(self, request: Request, form: Form, who: Account) -> Response:
        change = request.path_params["change"]
        if change not in ("enable", "disable", "trigger", "delete"):
            raise Refused(404, f"A schedule cannot be asked to {change[:40]}.")
        done = await self._desk.change_schedule(request.path_params["name"], change, who)
        return self._pages.redirect(request, "/schedules", done.done)

    async def open_breaker(self, request: Request, form: Form, who: Account) -> Response:
        body = v.BreakerBody(_seconds(form.get("cooldown") or "5m"), _optional(form, "reason"))
        done = await self._desk.open_breaker(form.get("target", ""), body, who)
        return self._pages.redirect(request, "/breakers", done.done)

    async def reset_breaker(self, request: Request, form: Form, who: Account) -> Response:
        body = v.ReasonBody(_optional(form, "reason"))
        done = await self._desk.reset_breaker(request.path_params["target"], body, who)
        return self._pages.redirect(request, "/breakers", done.done)

    async def send(self, request: Request, form: Form, who: Account) -> Response:
        """What was entered is kept when it does not fit."""
        domain, command_type = form.get("domain", ""), form.get("type", "")
        try:
            body = v.SendBody(
                domain,
                command_type,
                self._entered(domain, command_type, form),
                priority=_optional(form, "priority"),
                delay=parse_duration(form["delay"], "The delay") if form.get("delay") else None,
                unique_key=_optional(form, "unique_key"),
                tags=form.get("tags", "").split(),
            )
            sent = await self._desk.send(body, who)
        except (CommandBusError, ValueError) as error:
            content = self._pages.send_form(domain, command_type, form, str(error))
            return self._pages.render(request, "send.html", content, who, 422)
        told = "A command with this key waits already." if sent.duplicate else "The command was sent."
        place = f"/commands/{segment(sent.domain)}/{sent.command_id}"
        return self._pages.redirect(request, place, told)

    def _entered(self, domain: str, command_type: str, form: Form) -> Any:
        """The payload: a document, or the fields of the handler's type."""
        if "data" in form:
            return _document(form["data"] or "null", "The payload")
        known = self._desk.payloads.handlers()
        handler = next((h for h in known if (h.domain, h.command_type) == (domain, command_type)), None)
        fields = fields_of(handler.schema) if handler else None
        return {
            field["name"]: _value(field, form.get(f"field:{field['name']}", ""))
            for field in fields or []
            if field["required"] or form.get(f"field:{field['name']}") or field["kind"] == "boolean"
        }


def _value(field: dict[str, Any], entered: str) -> Any:
    match field["kind"]:
        case "boolean":
            return entered == "on"
        case "integer" | "number" | "json":
            return _document(entered, f"The field {field['name']}")
        case _:
            return entered


def _seconds(entered: str) -> float:
    try:
        return parse_duration(entered, "The time")
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def _rank(entered: str) -> str | int:
    """A priority: a label, or a number."""
    return int(entered) if entered.isdecimal() else entered


def _document(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"{what} is not JSON: {error}.") from None
    except RecursionError:
        raise InvalidArgumentError(f"{what} is nested too deeply.") from None


def _optional(form: Form, name: str) -> str | None:
    return form.get(name, "").strip() or None
