"""The app that was made last and the task that runs, for code that imports them by these names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from commandbus.integrations.celery.request import current_request

if TYPE_CHECKING:
    from commandbus.integrations.celery.app import Celery
    from commandbus.integrations.celery.task import Task

_apps: list[Celery] = []


def get_current_app() -> Celery:
    """The app that was made last; one of its own where there is none."""
    if not _apps:
        from commandbus.integrations.celery.app import Celery

        Celery("default")
    return _apps[-1]


def set_current_app(app: Celery) -> None:
    _apps[:] = [app]


def _get_current_task() -> Task[..., Any] | None:
    request = current_request.get()
    return None if request is None else get_current_app().find_task(str(request.task))


class _Proxy:
    """The app that was made last, or the task that runs: looked up each time that it is used."""

    def __init__(self, get: Callable[[], Any]) -> None:
        vars(self)["_get_current_object"] = get

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get_current_object(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._get_current_object(), name, value)

    def __repr__(self) -> str:
        return repr(self._get_current_object())

    def __bool__(self) -> bool:
        return self._get_current_object() is not None


current_app = cast("Celery", _Proxy(get_current_app))
current_task = cast("Task[..., Any]", _Proxy(_get_current_task))
