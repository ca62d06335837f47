"""Authentication of a request: an account by session or token, a user of the surrounding app, or
without both a browser at this machine."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, OrderedDict
from typing import Literal, Protocol

from starlette.requests import HTTPConnection

from commandbus.interfaces.web.accounts import Source
from commandbus.interfaces.web.fleet import Fleet
from commandbus.interfaces.web.hashing import SECRET_CHARACTERS_MAX, Hasher, dummy, scheme_of
from commandbus.interfaces.web.identity import LOCAL, Account, Authenticate
from commandbus.interfaces.web.local import OneTimeLinks, check_local
from commandbus.interfaces.web.refusals import Refused
from commandbus.interfaces.web.sessions import Keys, Sessions
from commandbus.interfaces.web.throttle import Throttle

logger = logging.getLogger("commandbus.dashboard")

TOKENS_KNOWN_MAX = 1_000
SignInKind = Literal["password", "link", "elsewhere"]


class Authenticator(Protocol):
    """Identifies requests."""

    kind: SignInKind
    """How a browser signs in."""
    sessions: Sessions
    counts: Counter[str]
    """Sign-ins by their outcome, since the start."""

    def check_reach(self, request: HTTPConnection) -> None:
        """Whether the sign-in page may be shown. Raises Refused."""
        ...

    async def identify(self, request: HTTPConnection) -> Account:
        """The account of a request. Raises Refused."""
        ...


class LocalAuthenticator:
    """Without accounts: this machine only; and with links, only browsers that opened one of them."""

    def __init__(self, keys: Keys, links: OneTimeLinks | None) -> None:
        self.kind: SignInKind = "link" if links else "elsewhere"
        self.links = links
        self.sessions = Sessions(keys)
        self.counts: Counter[str] = Counter()

    def check_reach(self, request: HTTPConnection) -> None:
        check_local(request)

    async def identify(self, request: HTTPConnection) -> Account:
        check_local(request)
        if self.links is None:
            return LOCAL
        account = self.sessions.find(request, {LOCAL.name: LOCAL}.get)
        if account is None:
            raise Refused(401, "Open the link that was printed when the dashboard started.")
        return account


class AppAuthenticator:
    """The app around the dashboard knows its users."""

    kind: SignInKind = "elsewhere"

    def __init__(self, keys: Keys, authenticate: Authenticate) -> None:
        self.sessions = Sessions(keys)
        self.counts: Counter[str] = Counter()
        self._authenticate = authenticate

    def check_reach(self, request: HTTPConnection) -> None:
        """The style of the pages is no secret."""

    async def identify(self, request: HTTPConnection) -> Account:
        account = await self._authenticate(request)
        if account is None:
            raise Refused(401, "Sign in first.")
        return account


class AccountAuthenticator:
    """Accounts: browsers have a session, programs send `Authorization: Bearer NAME.TOKEN`."""

    kind: SignInKind = "password"

    def __init__(
        self, keys: Keys, accounts: Source, throttle: Throttle | None = None, fleet: Fleet | None = None
    ) -> None:
        self.sessions = Sessions(keys)
        self.fleet = fleet
        self.counts: Counter[str] = Counter()
        self._keys = keys
        self._accounts = accounts
        self._throttle = throttle or Throttle()
        self._hasher = Hasher()
        self._known: OrderedDict[bytes, Account] = OrderedDict()

    def check_reach(self, request: HTTPConnection) -> None:
        """The sign-in page is for everyone."""

    async def identify(self, request: HTTPConnection) -> Account:
        accounts = self._accounts()
        token = _bearer(request)
        if token is None:
            account = self.sessions.find(request, accounts.get)
            if account is None:
                raise Refused(401, "Sign in, or send Authorization: Bearer NAME.TOKEN.")
            if self.fleet is not None and (known_as := self.sessions.session_of(request)):
                await self.fleet.check_session(known_as[0])
            return account
        # Hashes are slow on purpose, so a token that was proven is remembered by its digest; and it
        # counts only as long as its account is the same.
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._known.get(digest)
        if known is not None and accounts.get(known.name) == known:
            return known
        name = max((n for n in accounts if token.startswith(f"{n}.")), key=len, default="")
        secret = token[len(name) + 1 :]
        account = await self.sign_in(address_of(request), name, secret, "token")
        self._known[digest] = account
        while len(self._known) > TOKENS_KNOWN_MAX:
            self._known.popitem(last=False)
        return account

    def knows(self, name: str) -> bool:
        return name in self._accounts()

    async def sign_in(self, address: str, name: str, secret: str, what: str = "password") -> Account:
        """The account with this name and secret. Raises Refused; an unknown name takes as long as a
        wrong secret, and the answers do not differ."""
        account = self._accounts().get(name)
        try:
            with self._throttle.attempt(address, name):
                if self.fleet is not None:
                    await self.fleet.check(address, name)
                kept = account.secret if account else dummy(self._some_scheme(name))
                is_proven = len(secret) <= SECRET_CHARACTERS_MAX and await self._hasher.proves(
                    secret, kept
                )
                if account is None or not is_proven:
                    self._throttle.failed(address, name)
                    if self.fleet is not None:
                        await self.fleet.failed(address, name)
                    raise Refused(401, f"Name and {what} do not match.")
        except Refused as refused:
            self._note(refused.status, address, account)
            raise
        self._throttle.succeeded(address, name)
        if self.fleet is not None:
            await self.fleet.succeeded(address, name)
        self.counts["succeeded"] += 1
        return account

    def _note(self, status: int, address: str, account: Account | None) -> None:
        outcome = "failed" if status == 401 else "throttled"
        self.counts[outcome] += 1
        if outcome == "failed":
            # An unknown name is not logged: it may be a password in the wrong field.
            name = repr(account.name) if account else "an unknown name"
            logger.warning("a sign-in as %s from %s failed", name, address)

    def _some_scheme(self, name: str) -> str:
        """The same one for the same name, so that neither time nor its changes tell a name."""
        schemes = sorted({scheme_of(account.secret) for account in self._accounts().values()})
        return schemes[int(self._keys.sign("scheme", name)[:8], 16) % len(schemes)]


def address_of(request: HTTPConnection) -> str:
    """The client's address; a proxy that is believed may have written it."""
    return request.client.host[:100] if request.client else "unknown"


def _bearer(request: HTTPConnection) -> str | None:
    """The token of the header; an empty one for another scheme."""
    header = request.headers.get("authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
