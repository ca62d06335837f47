"""A program at this machine that asks a dashboard without accounts."""

from __future__ import annotations

from typing import Any

import httpx

from commandbus import CommandBus
from commandbus.interfaces.web import create_dashboard


def visitor(bus: CommandBus | str, **settings: Any) -> httpx.AsyncClient:
    app = create_dashboard(bus, open_to_this_machine=True, **settings)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")
