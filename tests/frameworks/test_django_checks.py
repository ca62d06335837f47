"""What `manage.py check` says about the bus, each with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.django_site import set_up_django

set_up_django()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.db import connections  # noqa: E402
from django.test import override_settings  # noqa: E402

from commandbus import HandlerRegistry  # noqa: E402
from commandbus.integrations.django import checks, transactions  # noqa: E402
from tests.frameworks.shop.settings import TASKS  # noqa: E402


def found(**options: Any) -> list[str | None]:
    changed = {**TASKS["default"]["OPTIONS"], **options}
    with override_settings(TASKS={"default": {**TASKS["default"], "OPTIONS": changed}}):
        return [message.id for message in checks.check_settings()]


@pytest.fixture(autouse=True)
def tidy_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database as the checks ask for it."""
    settings = connections["default"].settings_dict
    monkeypatch.setitem(settings, "OPTIONS", {"transaction_mode": "IMMEDIATE"})
    monkeypatch.setitem(settings, "TEST", {"NAME": "test.sqlite3"})


def test_a_site_in_order_has_no_message() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"DATABASE": "nowhere"}, "commandbus.E001"),
        ({"TRANSACTIONAL": True, "DATABASE": None, "URL": "sqlite:///x.db"}, "commandbus.E001"),
        ({"SPEED": 1}, "commandbus.E001"),
        ({"REGISTRIES": ["tests.frameworks.shop.tasks.missing"]}, "commandbus.E002"),
        ({"REGISTRIES": ["tests.frameworks.shop.tasks.done"]}, "commandbus.E002"),
    ],
)
def test_wrong_settings_are_errors(options: dict[str, Any], expected: str) -> None:
    assert found(**options) == [expected]


def test_an_app_without_a_backend_is_a_warning() -> None:
    with override_settings(TASKS={}):
        (message,) = checks.check_settings()
    assert (message.id, "CommandBusBackend" in str(message.hint)) == ("commandbus.W001", True)


def test_a_database_that_tests_or_workers_cannot_use_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = connections["default"].settings_dict
    monkeypatch.setitem(settings, "OPTIONS", {})
    monkeypatch.setitem(settings, "TEST", {"NAME": None})
    assert found()[-1] == "commandbus.W003"


@pytest.fixture
def empty_database(tmp_path: Path) -> Iterator[None]:
    settings = connections["default"].settings_dict
    before = settings["NAME"]
    settings["NAME"] = tmp_path / "empty.sqlite3"
    yield
    settings["NAME"] = before


@pytest.mark.usefixtures("empty_database")
def test_missing_tables_are_a_warning_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_tables(databases=None) == []
    (message,) = checks.check_tables(databases=["default"])
    assert (message.id, message.hint) == (
        "commandbus.W004",
        "Run `manage.py migrate --database default`.",
    )
    monkeypatch.setattr("sys.argv", ["manage.py", "migrate"])
    assert checks.check_tables(databases=["default"]) == []


def test_an_async_handler_cannot_be_transactional() -> None:
    registry = HandlerRegistry("payments")

    @registry.command(transactional=True)
    async def charge(order: int) -> None: ...

    with pytest.raises(ImproperlyConfigured, match=r"payments\.charge.*`def` handler"):
        registry.adapted(lambda handler: transactions.with_orm(handler, "default"))
