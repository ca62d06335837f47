"""The surroundings of a Celery app: imported modules, signal receivers, remote control."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from commandbus.integrations.celery.places import refused
from commandbus.integrations.celery.result import AsyncResult

if TYPE_CHECKING:
    from commandbus.integrations.celery.app import Celery


class Receivers:
    """`app.on_after_configure.connect`: functions that are called when tasks are needed first."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def connect(self, receiver: Callable[..., Any] | None = None, **_: Any) -> Any:
        if receiver is None:
            return self.connect
        self._app._waiting.append(lambda: receiver(sender=self._app))
        return receiver


class Control:
    """`app.control`: what operators do, as far as programs do it."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def revoke(self, task_id: str, **options: Any) -> None:
        """Cancel a task; see `AsyncResult.revoke`."""
        AsyncResult(task_id, self._app).revoke(**options)

    def __getattr__(self, name: str) -> Any:
        raise refused(f"app.control.{name}", "Use the command line, `commandbus --help`.")


def imported(path: str) -> Any:
    """The module, or with a colon the attribute, that the programmer names."""
    module, _, attribute = path.partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def import_if_there(name: str) -> None:
    """Import a module, unless there is none of this name."""
    try:
        import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (name == missing.name or name.startswith(f"{missing.name}.")):
            raise


def installed_apps() -> list[str]:
    """The applications of Django."""
    from django.apps import apps

    return [config.name for config in apps.get_app_configs()]
