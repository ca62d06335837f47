"""The web dashboard and its JSON API: `create_dashboard(bus)` is an ASGI app for any prefix."""

from __future__ import annotations

from commandbus.interfaces.web.app import create_dashboard
from commandbus.interfaces.web.hashing import hash_secret
from commandbus.interfaces.web.identity import Account, Role

__all__ = ["Account", "Role", "create_dashboard", "hash_secret"]
