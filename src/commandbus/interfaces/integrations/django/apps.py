"""The Django app: it has no models, only a management command."""

from __future__ import annotations

from django.apps import AppConfig


class CommandBusConfig(AppConfig):  # type: ignore[misc]
    name = "commandbus.interfaces.integrations.django"
    label = "commandbus"
    verbose_name = "Command Bus"
