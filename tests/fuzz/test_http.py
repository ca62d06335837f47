"""Raw requests to the dashboard and its API: an answer below 500, and nothing of ours reflected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import strategies as st

from commandbus import CommandBus
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.openapi import PREFIX, document
from tests.fuzz.fuzzing import fuzzed, json_values, texts

PATHS = (*(f"{PREFIX}{path}" for path in document()["paths"]), "/", "/commands", "/tsq", "/nowhere")
part = texts.filter(lambda text: "\0" not in text and "\ud800" not in text)


class Site:
    """A dashboard over a memory bus, on a loop of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.bus = CommandBus("memory://")
        self.run(self.bus.open())
        self.run(self.bus.send("orders", "ship", {"n": 1}))
        transport = httpx.ASGITransport(
            create_dashboard(self.bus, open_to_this_machine=True), raise_app_exceptions=True
        )
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine)

    def close(self) -> None:
        self.run(self.client.aclose())
        self.run(self.bus.close())
        self._runner.close()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@fuzzed(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "BREW"]),
    path=st.sampled_from(PATHS),
    parts=st.lists(part, min_size=3, max_size=3),
    query=st.dictionaries(st.sampled_from(["domain", "q", "limit", "after", "status", "x"]), part),
    body=st.one_of(st.none(), st.binary(max_size=60), json_values),
)
def test_every_request_is_answered(
    site: Site, method: str, path: str, parts: list[str], query: dict[str, str], body: Any
) -> None:
    for number, name in enumerate(piece for piece in path.split("/") if piece.startswith("{")):
        path = path.replace(name, quote(parts[number % 3] or "x", safe=""), 1)
    more: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"data": None}
    if body is not None and not isinstance(body, bytes):
        try:
            more = {"json": body}
            httpx.Request("POST", "http://x", json=body)
        except (ValueError, UnicodeEncodeError):
            more = {"content": b"{"}
    answer = site.run(site.client.request(method, path, params=query, **more))
    assert answer.status_code < 500, (method, path, query, answer.text[:300])
    assert "<script>alert(1)</script>" not in answer.text
    assert "Traceback" not in answer.text
