"""`app.conf`: the settings of Celery that mean something here, and what to do instead of the others.

A setting that has no equivalent is refused where it is set, so that nothing is silently ignored that
would change what an application does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commandbus.integrations.celery.places import caller, refused

STORES = ("memory://", "sqlite://", "postgresql://", "postgres://")

MEANT: dict[str, Any] = {
    "broker_url": None,
    "timezone": "UTC",
    "task_default_queue": "celery",
    "task_queues": (),
    "task_routes": {},
    "task_time_limit": None,
    "task_soft_time_limit": None,
    "task_ignore_result": False,
    "task_default_rate_limit": None,
    "task_default_priority": None,
    "beat_schedule": {},
    "imports": (),
    "include": (),
}
"""The settings that are read, and their values when they are not set."""

FAMILIES = ("beat_", "broker_", "control_", "event_", "result_", "task_", "worker_")
"""How the settings begin that a module of settings has; its other names are its own."""

OLD = ("CELERY_", "CELERYD_", "CELERYBEAT_")
OLD_CURE = (
    "It is a name from before Celery 4, or one for namespace='CELERY': give that namespace to "
    "config_from_object, or write the new name in lower case, as task_routes and beat_schedule."
)

ALWAYS = frozenset(
    {
        "accept_content",
        "broker_connection_retry",
        "broker_connection_retry_on_startup",
        "broker_heartbeat",
        "broker_pool_limit",
        "enable_utc",
        "event_queue_expires",
        "result_accept_content",
        "result_extended",
        "result_persistent",
        "task_acks_late",
        "task_create_missing_queues",
        "task_publish_retry",
        "task_reject_on_worker_lost",
        "task_send_sent_event",
        "task_serializer",
        "task_store_errors_even_if_ignored",
        "task_track_started",
        "result_serializer",
        "worker_hijack_root_logger",
        "worker_prefetch_multiplier",
        "worker_send_task_events",
    }
)
"""Settings that need not be read: the bus always behaves so, or has nothing that they are about."""

CURES = {
    "result_backend": "Remove it: results are kept in the store, beside their commands.",
    "task_always_eager": "Remove it: in tests call drain(app.bus, app.registry).",
    "task_eager_propagates": "Remove it: in tests call drain(app.bus, app.registry).",
    "worker_concurrency": "Remove it, and start `commandbus worker --concurrency N`.",
    "worker_max_tasks_per_child": "Remove it, and start `commandbus worker --recycle-after N`.",
    "worker_pool": "Remove it: workers run tasks in threads, and --processes N starts processes.",
    "result_expires": "Remove it: `commandbus db prune` forgets old results.",
    "broker_transport_options": "Remove it: a lease is renewed while its task runs.",
    "task_default_retry_delay": "Give default_retry_delay to the tasks.",
    "task_annotations": "Give the options to the tasks.",
    "beat_scheduler": "Remove it: any worker sends what is due, and `commandbus schedule` changes it.",
    "beat_schedule_filename": "Remove it: schedules are kept in the store.",
}


class Conf:
    """The settings of an app, as attributes, by `update(…)`, and from an object."""

    def __init__(self) -> None:
        vars(self)["_values"] = dict(MEANT)
        vars(self)["_places"] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"app.conf has no setting {name!r} that is used here") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.set(name, value, caller())

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value, caller())

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def update(self, *given: Mapping[str, Any], **settings: Any) -> None:
        """Set several. Raises NotPortable for those that have no equivalent."""
        for name, value in {**(given[0] if given else {}), **settings}.items():
            self.set(name, value, caller())

    def place(self, name: str) -> str:
        """Where a setting was set."""
        return str(self._places.get(name, "app.conf"))

    def set(self, name: str, value: Any, place: str) -> None:
        """Keep a setting that is used; refuse one that has no equivalent."""
        if name in ALWAYS:
            if name.endswith(("serializer", "accept_content")):
                _only_json(name, value, place)
            return
        if name not in MEANT:
            raise refused(
                f"the setting {name} = {value!r}",
                CURES.get(name, "Remove it if the application works without; else see the guide."),
                place,
            )
        if name == "task_routes" and not isinstance(value, Mapping):
            raise refused(f"the routes {value!r}", "Write {'module.task': {'queue': 'name'}}.", place)
        if name == "broker_url" and value is not None and not str(value).startswith(STORES):
            raise refused(
                f"the broker {str(value).partition('://')[0]}://…",
                "Give the URL of the store (sqlite:///app.db, postgresql://…), or remove the broker "
                "and set COMMANDBUS_URL.",
                place,
            )
        self._values[name] = value
        self._places[name] = place

    def read(self, settings: Any, namespace: str | None, place: str) -> None:
        """The settings of a module, class or mapping; with a namespace those that begin with it."""
        found = settings if isinstance(settings, Mapping) else _attributes(settings)
        prefix = "" if namespace is None else f"{namespace}_".lower()
        for name, value in found.items():
            lowered = name.lower()
            is_setting = lowered.startswith(prefix) and not name.startswith("_")
            if is_setting and not prefix and name.startswith(OLD):
                raise refused(f"the setting {name}", OLD_CURE, f"{place} ({name})")
            if is_setting and (prefix or lowered.startswith(FAMILIES) or lowered in MEANT):
                self.set(lowered.removeprefix(prefix), value, f"{place} ({name})")


def _attributes(settings: Any) -> dict[str, Any]:
    """Also of Django's settings, whose attributes only `dir` knows."""
    return {name: getattr(settings, name) for name in dir(settings) if not name.startswith("_")}


def _only_json(name: str, value: Any, place: str) -> None:
    kinds = [value] if isinstance(value, str) else list(value)
    if not set(kinds) <= {"json", "application/json"}:
        raise refused(
            f"{name} = {value!r}",
            "Payloads and results are JSON: remove the setting, and pass ids instead of objects.",
            place,
        )
