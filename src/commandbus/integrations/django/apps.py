"""The Django app: the bus's tables as part of `migrate`, system checks, and what comes with the app."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class CommandBusConfig(AppConfig):  # type: ignore[misc]
    name = "commandbus.integrations.django"
    label = "commandbus"
    verbose_name = "Command Bus"

    def ready(self) -> None:
        from commandbus.integrations.django.checks import check_settings, check_tables

        post_migrate.connect(_create_tables, sender=self)
        checks.register(check_settings, "commandbus")
        checks.register(check_tables, "commandbus", checks.Tags.database)


def _create_tables(using: str, **_: Any) -> None:
    """`migrate` of a database brings the bus in it to this version, a test database's, too."""
    from commandbus.connect import create_administration
    from commandbus.integrations.django import api
    from commandbus.integrations.django.backend import CommandBusBackend

    for alias in api.task_backends.settings:
        backend = api.task_backends[alias]
        if isinstance(backend, CommandBusBackend) and backend.database == using:
            assert backend.url is not None
            create_administration(backend.url).upgrade()
