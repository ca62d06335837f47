"""Orders."""

from django.db import models


class Order(models.Model):
    article = models.CharField(max_length=100)
    state = models.CharField(max_length=20, default="placed")
    task_id = models.UUIDField(null=True, editable=False)
    """The task that ships the order: its page in the dashboard is /commands/<task_id>."""

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"{self.article} ({self.state})"
