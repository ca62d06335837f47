"""The sign-in page, links of the terminal, and signing out."""

from __future__ import annotations

import logging
from urllib.parse import parse_qs, urlsplit

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commandbus.errors import CommandBusError
from commandbus.interfaces.web.actions import OperatorApi
from commandbus.interfaces.web.admission import body_of
from commandbus.interfaces.web.auth import (
    AccountAuthenticator,
    Authenticator,
    LocalAuthenticator,
    address_of,
)
from commandbus.interfaces.web.csrf import FIELD, FormTokens, check_origin
from commandbus.interfaces.web.identity import LOCAL, Account
from commandbus.interfaces.web.pages import Pages
from commandbus.interfaces.web.problems import HANDLED
from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.views import Links as Addresses
from commandbus.operations.actions import record_action
from commandbus.runtimes.asyncio.facade import awaiting

logger = logging.getLogger("commandbus.dashboard")

FORM_BYTES_MAX = 8_192
_record_action = awaiting(record_action)
"""Signing in is no operation of the bus, and on record like one."""


class SigningIn:
    def __init__(
        self, desk: OperatorApi, pages: Pages, authenticator: Authenticator, tokens: FormTokens
    ) -> None:
        self._desk = desk
        self._pages = pages
        self._authenticator = authenticator
        self._tokens = tokens

    def routes(self) -> list[Route]:
        return [
            Route("/sign-in", self.show, methods=["GET"]),
            Route("/sign-in", self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        """The page; or, with the token of a link, the way in."""
        authenticator = self._authenticator
        try:
            authenticator.check_reach(request)
            token = request.query_params.get("token")
            if (
                isinstance(authenticator, LocalAuthenticator)
                and authenticator.links
                and token
                and request.method == "GET"
            ):
                if not authenticator.links.use(token):
                    authenticator.counts["failed"] += 1
                    raise Refused(403, "The link was used already: the terminal shows the next one.")
                authenticator.counts["succeeded"] += 1
                return await self._enter(request, LOCAL, "/")
            await authenticator.identify(request)
        except HANDLED as error:
            return self._pages.problem(request, error)
        return RedirectResponse(_addresses(request)("/"), 303)

    async def sign_in(self, request: Request) -> Response:
        form: dict[str, str] = {}
        name = ""
        try:
            self._authenticator.check_reach(request)
            form = await self._form(request)
            self._tokens.check(request, form.get(FIELD, ""), "")
            if not isinstance(self._authenticator, AccountAuthenticator):
                raise Refused(404, "There is no sign-in with a password here.")
            name = form.get("name", "").strip()
            account = await self._authenticator.sign_in(
                address_of(request), name, form.get("password", "")
            )
        except Refused as refused:
            if self._authenticator.kind != "password":
                return self._pages.problem(request, refused)
            place = _inside(form.get("next", "/"))
            response = self._pages.sign_in(request, refused, place=place, name=name, was_tried=True)
            if refused.status == 401:
                # After the answer: only accounts are recorded, and its time must not tell them.
                response.background = BackgroundTask(
                    self._record, "dashboard", "sign_in_failed", name, request
                )
            return response
        await self._record(account.name, "sign_in", "dashboard", request)
        return await self._enter(request, account, form.get("next", "/"))

    async def sign_out(self, request: Request) -> Response:
        try:
            who = await self._authenticator.identify(request)
            form = await self._form(request)
            self._tokens.check(request, form.get(FIELD, ""), who.name)
        except HANDLED as error:
            return self._pages.problem(request, error)
        response = RedirectResponse(_addresses(request)("/sign-in"), 303)
        await self._end_elsewhere(request)
        self._authenticator.sessions.end(request, response, _addresses(request)("/"))
        return response

    async def _end_elsewhere(self, request: Request) -> None:
        """The other processes of the app refuse the session, too."""
        authenticator = self._authenticator
        session = authenticator.sessions.session_of(request)
        if isinstance(authenticator, AccountAuthenticator) and authenticator.fleet and session:
            await authenticator.fleet.end(*session)

    async def _enter(self, request: Request, account: Account, place: str) -> Response:
        response = RedirectResponse(_addresses(request)(_inside(place)), 303)
        self._authenticator.sessions.begin(request, response, account, _addresses(request)("/"))
        return response

    async def _form(self, request: Request) -> dict[str, str]:
        check_origin(request)
        content = (await body_of(request, FORM_BYTES_MAX)).decode("utf-8", "replace")
        try:
            fields = parse_qs(content, keep_blank_values=True, max_num_fields=10)
        except ValueError:
            raise Refused(422, "The form cannot be read.") from None
        return {key: values[-1] for key, values in fields.items()}

    async def _record(self, actor: str, action: str, subject: str, request: Request) -> None:
        """In the audit. Failures only of known accounts: guesses must not fill the store."""
        authenticator = self._authenticator
        if action == "sign_in_failed" and not (
            isinstance(authenticator, AccountAuthenticator) and authenticator.knows(subject)
        ):
            return
        try:
            bus = (await self._desk.stores.acting()).acting(actor)
            await _record_action(bus, action, subject, f"from {address_of(request)}")
        except CommandBusError as error:  # a store that is down must not keep its operators out
            logger.warning("a sign-in could not be recorded: %s", error)


def _addresses(request: Request) -> Addresses:
    return Addresses(request.scope.get("root_path", ""))


def _inside(place: str) -> str:
    """A path of the dashboard; anything else leads to the overview."""
    try:
        parts = urlsplit(place)
    except ValueError:
        return "/"
    is_path = place.startswith("/") and not place.startswith(("//", "/\\")) and place.isprintable()
    return place if is_path and not parts.scheme and not parts.netloc else "/"
