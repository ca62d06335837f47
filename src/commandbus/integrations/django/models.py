"""One model without a table: the commands of the bus in the admin, with permissions of their own."""

from __future__ import annotations

from django.db import models


class Command(models.Model):  # type: ignore[misc]
    """Stands for the commands of the bus. It is never queried: the admin asks the bus."""

    command_id = models.UUIDField(primary_key=True)

    class Meta:
        app_label = "commandbus"
        managed = False
        default_permissions = ("view",)
        verbose_name = "command"
        verbose_name_plural = "commands"
