"""System checks: what `manage.py check` says about the bus, and `check --database` about its tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import django
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's own name
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from commandbus.connect import create_administration
from commandbus.errors import CommandBusError
from commandbus.integrations.django import api
from commandbus.integrations.django.backend import CommandBusBackend
from commandbus.integrations.django.handling import registry_for

PATH = f"{CommandBusBackend.__module__}.{CommandBusBackend.__qualname__}"


def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Whether the settings name a bus that workers and senders can use."""
    found: list[CheckMessage] = []
    backends: list[CommandBusBackend] = []
    for alias in api.task_backends.settings:
        try:
            backend = api.task_backends[alias]
        except ImproperlyConfigured as error:
            found.append(Error(str(error), id="commandbus.E001"))
            continue
        if isinstance(backend, CommandBusBackend):
            backends.append(backend)
            found += _problems(backend)
    if not backends and not found:
        found.append(
            Warning(
                "No backend in TASKS uses the command bus, so there is nothing to send to.",
                hint=f'Set TASKS["default"]["BACKEND"] to "{PATH}", or do not install the app.',
                id="commandbus.W001",
            )
        )
    return found


def _problems(backend: CommandBusBackend) -> Iterator[CheckMessage]:
    where = f"TASKS[{backend.alias!r}]"
    try:
        url = backend.url
    except (ImproperlyConfigured, CommandBusError) as error:
        yield Error(f"{where}: {error}", id="commandbus.E001")
        return
    except Exception as error:  # an alias that DATABASES does not have, by Django's own error
        yield Error(
            f"{where}: {error}", hint="DATABASE is an alias of DATABASES.", id="commandbus.E001"
        )
        return
    try:
        registry_for(backend.alias)
    except (ImproperlyConfigured, CommandBusError) as error:
        yield Error(str(error), id="commandbus.E002")
    if backend.database and url is not None and url.startswith("sqlite:"):
        yield from _of_sqlite(backend.database)


def _of_sqlite(alias: str) -> Iterator[CheckMessage]:
    settings = connections[alias].settings_dict
    mode = (settings.get("OPTIONS") or {}).get("transaction_mode")
    version: tuple[Any, ...] = django.VERSION
    if version >= (5, 1) and str(mode).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield Warning(
            f"Transactions of DATABASES[{alias!r}] take SQLite's write lock only at their first write; "
            "one that has read before fails when a worker has written meanwhile.",
            hint=f"Set DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}.",
            id="commandbus.W002",
        )
    name = (settings.get("TEST") or {}).get("NAME")
    if not name or ":memory:" in str(name):
        yield Warning(
            f"The test database of DATABASES[{alias!r}] is in memory, where the bus cannot be: tests "
            "that send will fail.",
            hint=f"Set DATABASES[{alias!r}]['TEST'] = {{'NAME': 'test.sqlite3'}}.",
            id="commandbus.W003",
        )


def check_tables(
    app_configs: Any = None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Whether the tables of the bus are there, in the databases that are checked. A warning, and none
    before `migrate`: that command stops at errors, and it creates them."""
    found: list[CheckMessage] = []
    if sys.argv[1:2] == ["migrate"]:
        return found
    for alias in api.task_backends.settings:
        backend = api.task_backends[alias]
        if not isinstance(backend, CommandBusBackend) or backend.database not in (databases or ()):
            continue
        assert backend.url is not None
        try:
            create_administration(backend.url).verify()
        except CommandBusError as error:
            found.append(
                Warning(
                    f"The tables of the bus in DATABASES[{backend.database!r}] cannot be used: {error}",
                    hint=f"Run `manage.py migrate --database {backend.database}`.",
                    id="commandbus.W004",
                )
            )
    return found
