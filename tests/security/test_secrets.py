"""No part of a connection secret is shown or logged, whatever the form of the URL and of its errors."""

from __future__ import annotations

import asyncio
import io
import logging
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from commandbus import CommandBusError
from commandbus.connect import (
    create_administration,
    create_engine,
    create_pgmq_engine,
    create_pool,
    install_pgmq,
    plan_connections,
)
from commandbus.engines.postgres import location
from commandbus.interfaces.cli import target
from commandbus.interfaces.cli.exits import CliError
from commandbus.interfaces.web import create_dashboard
from commandbus.interfaces.web.openapi import PREFIX
from commandbus.store.urls import shown_url
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli
from tests.postgres.database import empty_url
from tests.web.people import AS_VERA, VERA

SECRET = "Zq7xWv9K"
AWAY = "127.0.0.1:1"
"""Nothing listens there."""
URLS = (
    f"postgresql://app:{SECRET}@{AWAY}/db",
    f"postgres://app:{SECRET}@{AWAY}/db?schema=jobs",
    f"postgresql://:{SECRET}@{AWAY}/db",
    f"postgresql://{AWAY}/db?user=app&password={SECRET}",
    f"postgresql://{AWAY}/db?password={SECRET}&user=app",
    f"postgresql://app@{AWAY}/db?PASSWORD={SECRET}",
    f"postgresql://app@{AWAY}/db?pass%77ord={SECRET}",
    f"postgresql://app@{AWAY}/db?sslpassword={SECRET}",
    f"postgresql://app@{AWAY}/db?sslkey=/keys/{SECRET}",
    f"postgresql://app@{AWAY}/db?passfile=/home/{SECRET}/.pgpass",
    f"postgresql://app@{AWAY}/db?oauth_client_secret={SECRET}",
    f"postgresql://app@{AWAY}/db?scram_client_key={SECRET}",
    f"postgresql://app@{AWAY}/db?options=-c%20app.key%3D{SECRET}",
    f"postgresql://app@{AWAY}/db?passwrd={SECRET}",
    f"postgresql://app@{AWAY}/db?password=a&{SECRET}",
    f"postgresql://app@{AWAY}/db?password=a&{SECRET}=b",
    f"postgresql://app@{AWAY}/db?password={SECRET}%2Z",
    f"postgresql://app@{AWAY}/db?password={SECRET}%00",
    f"postgresql://app:{SECRET}%2Z@{AWAY}/db",
    f"postgresql://app:%zz{SECRET}@{AWAY}/db",
    f"postgresql://app:{SECRET}%00@{AWAY}/db",
    f"postgresql://app:x@{SECRET}@{AWAY}/db",
    f"postgresql://app:{SECRET}@x@{AWAY}/db",
    f"postgresql://app:x/{SECRET}@{AWAY}/db",
    f"postgresql://app:{SECRET}/x@{AWAY}/db",
    f"postgresql://app:1/{SECRET}@{AWAY}/db",
    f"postgresql://app:x?{SECRET}@{AWAY}/db",
    f"postgresql://app:{SECRET}?x@{AWAY}/db",
    f"postgresql://app:x#{SECRET}@{AWAY}/db",
    f"postgresql://app:{SECRET}#x@{AWAY}/db",
    f"postgresql://app:x {SECRET}@{AWAY}/db",
    f"postgresql://app:{SECRET}[@{AWAY}/db",
    f"postgresql://app:{SECRET}]@{AWAY}/db",
    f"postgresql://app:{SECRET}\u2100@{AWAY}/db",
    f"postgresql://app:{SECRET}/db",
    f"postgresql://app:{SECRET}",
    f"postgresql://app:{SECRET}@127.0.0.1:1,127.0.0.1:2/db",
    f"postgresql://app:{SECRET}@[::1]:1/db",
    f"postgresql://app:{SECRET}@[::1/db",
    f"postgresql://app:{SECRET}@127.0.0.1:x/db",
    f"postgresql://app:{SECRET}@127.0.0.1:99999/db",
    f"postgresql://app:{SECRET}@%2Ftmp%2Fnowhere/db",
    f"postgresql:///db?host=/tmp/nowhere&password={SECRET}",
    f"postgresql://{AWAY}/db&password={SECRET}",
    f"postgresql://{AWAY}/db;password={SECRET}",
    f"postgresql://{AWAY}/db?service=nosuch&password={SECRET}",
    f"postgresql://app:{SECRET}@{AWAY}/db?schema=NOT",
    f"postgresql://app:{SECRET}@{AWAY}/db?pool_size=0",
    f"postgresql://app:{SECRET}@{AWAY}/db?pooler=on&notify=maybe",
    f"postgresql://app:{SECRET}@{AWAY}/db?transport=pigeon",
    f"POSTGRESQL://app:{SECRET}@{AWAY}/db",
    f"postgresql+psycopg://app:{SECRET}@{AWAY}/db",
    f"redis://:{SECRET}@{AWAY}/0",
    f"mysql://app@{AWAY}/db?password={SECRET}",
    f"host=127.0.0.1 port=1 user=app password={SECRET}",
    f"app:{SECRET}@{AWAY}",
    SECRET,
    f"sqlite://app:{SECRET}@/x",
    f"sqlite://app:{SECRET}@host/x.db",
    f"sqlite:///x.db?password={SECRET}",
    f"sqlite:///x.db?key={SECRET}%2Z",
    f"sqlite:///x.db#{SECRET}",
    f"memory://app:{SECRET}@/x",
)


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return request.param


def leaks(text: str) -> bool:
    """Whether any four letters of the secret are there, in either order of escaping."""
    pieces = [SECRET[at : at + 4] for at in range(len(SECRET) - 3)]
    return any(piece in text or quote(piece) in text for piece in pieces)


def test_a_url_is_shown_without_its_secrets(url: str) -> None:
    assert not leaks(shown_url(url))


OPENINGS: dict[str, Any] = {
    "engine": lambda url: create_engine(url),
    "pgmq": lambda url: create_pgmq_engine(url),
    "transport": lambda url: create_engine(url, transport="pigeon"),
    "administration": lambda url: create_administration(url).doctor(),
    "upgrade": lambda url: create_administration(url).upgrade(),
    "bus": lambda url: SyncCommandBus(url).open(),
    "pool": lambda url: create_pool(url, 1).close(),
    "plan": lambda url: plan_connections(url, 1),
    "install": lambda url: install_pgmq(url),
    "command line": lambda url: target.opened(url).__enter__(),
}


@pytest.mark.postgres
@pytest.mark.parametrize("opening", OPENINGS)
def test_no_error_and_no_log_shows_a_secret(url: str, opening: str) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    shown: list[str] = []
    try:
        shown.append(str(OPENINGS[opening](url)))
    except (CommandBusError, CliError) as error:
        shown += traceback.format_exception(error)
        shown += every_text_of(error)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert not leaks("\n".join(shown))
    assert not leaks(log.getvalue())


@pytest.mark.postgres
async def test_pages_and_the_command_line_show_no_secret_of_the_url_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the form of libpq's own parameters; the server of the tests asks for no password."""
    url = f"{empty_url()}&password={SECRET}&sslpassword={SECRET}"
    monkeypatch.setattr(target, "chosen_url", None)
    app = create_dashboard(url, accounts=[VERA])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="https://bus.example") as client:
        for path in ("/", "/system", "/metrics", f"{PREFIX}/system", f"{PREFIX}/overview"):
            answer = await client.get(path, headers=AS_VERA)
            assert answer.status_code == 200
            assert not leaks(answer.text), path
    for arguments in (
        ("db", "doctor"),
        ("db", "verify"),
        ("queue", "list"),
        ("db", "doctor", "--json"),
    ):
        shown = await asyncio.to_thread(Cli(), *arguments, "--url", url, code=None)
        assert shown.code in (0, 6), shown.err
        assert not leaks(shown.out + shown.err), arguments


def every_text_of(error: BaseException | None) -> list[str]:
    """Also of errors that a traceback leaves out, which collectors of errors may send."""
    texts: list[str] = []
    while error is not None:
        texts += [str(error), repr(error), repr(error.args)]
        error = error.__cause__ or error.__context__
    return texts


def test_what_helps_is_shown() -> None:
    for given, expected in (
        ("postgresql://ada:secret@host/db", "postgresql://ada:…@host/db"),
        ("postgresql://ada@host:5432/db", "postgresql://ada@host:5432/db"),
        ("postgresql://a,b:1/db?schema=jobs&sslmode=x", "postgresql://a,b:1/db?schema=jobs&…"),
        ("postgresql:///db?host=%2Ftmp%2Fpg&port=1", "postgresql:///db?host=%2Ftmp%2Fpg&port=1"),
        ("sqlite:////var/lib/me@work/jobs.db", "sqlite:////var/lib/me@work/jobs.db"),
        ("memory://", "memory://"),
        ("redis://:x@host", "redis://…"),
        ("nonsense", "…"),
    ):
        assert shown_url(given) == expected


def test_a_url_that_cannot_be_understood_is_explained() -> None:
    for url, word in (
        ("postgresql://app:a@b@host/db", "not escaped"),
        ("postgresql://app:a/b@host/db", "not escaped"),
        ("postgresql://app:%2Z@host/db", "escape"),
        ("postgresql://app@host/db?conect_timeout=3", "is it connect_timeout?"),
        ("postgresql://app@host/db?pool_sise=3", "is it pool_size?"),
    ):
        with pytest.raises(CommandBusError, match=word) as caught:
            create_engine(url)
        assert "%40" in str(caught.value)


def test_a_location_is_printed_without_its_password() -> None:
    found = location.parse(f"postgresql://app:{SECRET}@host/db?schema=jobs")
    assert SECRET in found.conninfo
    assert not leaks(repr(found) + str(found))
