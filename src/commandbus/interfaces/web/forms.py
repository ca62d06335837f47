"""HTML forms: their fields become the same values that the API takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commandbus.errors import CommandBusError, InvalidArgumentError
from commandbus.interfaces.actions.answers import Sent
from commandbus.interfaces.actions.carrying import params_of_many
from commandbus.interfaces.actions.model import Action
from commandbus.interfaces.actions.table import ACTIONS
from commandbus.interfaces.cli.text import parse_duration, plural
from commandbus.interfaces.web import schemas as v
from commandbus.interfaces.web.action_pages import bulk_of, everything, keys_of
from commandbus.interfaces.web.actions import OperatorApi
from commandbus.interfaces.web.admission import admit, body_of
from commandbus.interfaces.web.auth import Authenticator
from commandbus.interfaces.web.bodies import document, entered
from commandbus.interfaces.web.csrf import FIELD, FormTokens, check_origin
from commandbus.interfaces.web.identity import Account, Role
from commandbus.interfaces.web.pages import MENU, Pages
from commandbus.interfaces.web.payloads import fields_of
from commandbus.interfaces.web.problems import HANDLED, status_of
from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.views import segment

Form = dict[str, str]
Act = Callable[[Request, Form, Account], Awaitable[Response]]


class Forms:
    """Every form goes back to a page that says what was done."""

    def __init__(
        self, desk: OperatorApi, pages: Pages, authenticator: Authenticator, tokens: FormTokens
    ) -> None:
        self._desk = desk
        self._pages = pages
        self._authenticator = authenticator
        self._tokens = tokens

    def routes(self) -> list[Route]:
        acts: list[tuple[str, Act]] = [
            ("/send", self.send),
            ("/bulk/{bulk_id}/stop", self.stop_bulk),
            ("/views/save", self.save_view),
            ("/views/delete", self.delete_view),
        ]
        for action in ACTIONS:
            acts.append((action.path, self._one(action)))
            if action.exists != "must":
                acts.append((action.list_path, self._one(action)))
            if action.many is not None:
                acts.append((action.list_path, self._many(action)))
        return [Route(path, self._serving(act), methods=["POST"]) for path, act in acts]

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
            except ValueError:  # more fields than a form has
                return self._pages.problem(request, Refused(422, "The form cannot be read."))

        return serve

    def _one(self, action: Action) -> Act:
        async def act(request: Request, form: Form, who: Account) -> Response:
            keys = keys_of(request)
            asked = tuple(key for key in action.subject.keys if key.name not in keys)
            try:
                given = keys | entered((*asked, *action.params), form)
                answer, message = await self._desk.act(action, given, who)
            except CommandBusError as error:
                if isinstance(error, LookupError):
                    raise
                content = self._pages.actions.form(action, keys, form, str(error))
                return self._pages.render(request, "action.html", content, who, status_of(error))
            place = action.back or action.subject.shown.format(
                **{name: segment(value) for name, value in given.items()}
            )
            if action.subject.noun == "command":
                message = f"The command was {message}."
                if isinstance(answer, Sent):
                    place = f"/commands/{segment(answer.domain)}/{answer.command_id}"
            back = form.get("back", "")
            is_page = any(back == path for path, _, _ in MENU)
            return self._pages.redirect(request, back if is_page else place, message)

        return act

    def _many(self, action: Action) -> Act:
        many = action.many
        assert many is not None

        async def act(request: Request, form: Form, who: Account) -> Response:
            try:
                given = entered(params_of_many(many, action), form) | everything(many, form)
                if not given.get("reason"):
                    raise InvalidArgumentError("Give a reason: the audit of every command keeps it.")
                content = await self._pages.actions.preview(action, form, who)
                bulk = await self._desk.begin_bulk(action, given, who, bulk_of(content, given, who))
            except CommandBusError as error:
                content = await self._pages.actions.preview(action, form, who, str(error))
                return self._pages.render(request, "many.html", content, who, status_of(error))
            if bulk.state != "done":
                return self._pages.redirect(request, f"/bulk/{bulk.bulk_id}", "")
            past = action.done if isinstance(action.done, str) else many.done
            message = f"{plural(bulk.done, 'command')} {past}."
            if bulk.refused:
                message += f" {plural(bulk.refused, 'command')} had changed meanwhile."
            page = "/troubleshooting" if many.everything else "/commands"
            return self._pages.redirect(request, page, message)

        return act

    async def stop_bulk(self, request: Request, form: Form, who: Account) -> Response:
        bulk = await self._desk.bulks.stop(request.path_params["bulk_id"])
        return self._pages.redirect(
            request, f"/bulk/{bulk.bulk_id}", "The bulk action is asked to stop."
        )

    async def save_view(self, request: Request, form: Form, who: Account) -> Response:
        name, query = form.get("name", "").strip(), form.get("q", "").strip()
        await self._desk.views.save(name, query, who.name)
        place = f"/commands?{urlencode({'q': query})}"
        return self._pages.redirect(request, place, f"The view {name} is saved for everyone.")

    async def delete_view(self, request: Request, form: Form, who: Account) -> Response:
        await self._desk.views.delete(form.get("name", ""), who.name)
        return self._pages.redirect(request, "/commands", f"The view {form.get('name')} is deleted.")

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
        message = (
            "A command with this key waits already." if sent.duplicate else "The command was sent."
        )
        place = f"/commands/{segment(sent.domain)}/{sent.command_id}"
        return self._pages.redirect(request, place, message)

    def _entered(self, domain: str, command_type: str, form: Form) -> Any:
        """The payload: a document, or the fields of the handler's type."""
        if "data" in form:
            return document(form["data"] or "null", "The payload")
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
            return document(entered, f"The field {field['name']}")
        case _:
            return entered


def _optional(form: Form, name: str) -> str | None:
    return form.get(name, "").strip() or None
