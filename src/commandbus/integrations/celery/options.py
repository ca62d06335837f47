"""The options of tasks and of `apply_async`: which are used, and what to do instead of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict
from zoneinfo import ZoneInfo

from commandbus.domain.command import SendOptions
from commandbus.domain.priority import LABELS
from commandbus.integrations.celery.places import refused


class TaskOptions(TypedDict, total=False):
    """The options of `@app.task` and `@shared_task` that are used."""

    name: str
    base: type
    queue: str
    max_retries: int | None
    default_retry_delay: float
    autoretry_for: Iterable[type[BaseException]]
    dont_autoretry_for: Iterable[type[BaseException]]
    retry_kwargs: Mapping[str, Any]
    retry_backoff: bool | float
    retry_backoff_max: float
    retry_jitter: bool
    rate_limit: str | float | None
    time_limit: float | None
    soft_time_limit: float | None
    ignore_result: bool
    priority: int | None
    expires: float | timedelta | None
    throws: Iterable[type[BaseException]]
    acks_late: bool
    reject_on_worker_lost: bool
    acks_on_failure_or_timeout: bool
    track_started: bool
    store_errors_even_if_ignored: bool
    serializer: str
    typing: bool


TASK_CURES = {
    "pydantic": "Remove it: a parameter annotated with a model is decoded and checked anyway.",
    "compression": "Remove it.",
    "routing_key": "Give queue= instead.",
    "exchange": "Give queue= instead.",
    "request": "Remove it: self.request has the same fields for all tasks.",
    "filter": "Remove it, and decorate the function itself.",
}
CALL_CURES = {
    "time_limit": "Give time_limit to the task.",
    "soft_time_limit": "Give soft_time_limit to the task.",
    "routing_key": "Give queue= instead.",
    "exchange": "Give queue= instead.",
    "group_id": "Use group(…).",
    "chord": "Use chord(header)(body).",
    "connection": "Remove it: the app has one bus, which is app.bus.",
    "producer": "Remove it: the app has one bus.",
}
WITHOUT_EFFECT = frozenset(
    {"retry", "retry_policy", "ignore_result", "add_to_parent", "argsrepr", "kwargsrepr", "shadow"}
)
USED = frozenset(
    {"countdown", "eta", "expires", "priority", "queue", "task_id", "headers", "serializer"}
)


def check_task_options(name: str, options: Mapping[str, Any], place: str) -> None:
    """Raises NotPortable for an option that has no equivalent."""
    for option, value in options.items():
        if option not in TaskOptions.__annotations__:
            cure = TASK_CURES.get(option, "Remove it if the task works without it.")
            raise refused(f"the option {option}= of task {name}", cure, place)
        if option == "serializer" and value != "json":
            raise refused(
                f"serializer={value!r} of task {name}",
                "Payloads are JSON: remove it, and pass ids instead of objects.",
                place,
            )


def bus_priority(priority: int | None) -> int | None:
    """Celery's priorities grow with urgency, as those of RabbitMQ; those of the bus fall."""
    return None if priority is None else LABELS["normal"] - priority


def send_options(options: Mapping[str, Any], timezone: str) -> SendOptions:
    """The options of `apply_async` as those of a send. Raises NotPortable."""
    for option in options:
        if option not in USED and option not in WITHOUT_EFFECT:
            cure = CALL_CURES.get(option, "Remove it if the application works without it.")
            raise refused(f"apply_async({option}=…)", cure)
    if options.get("serializer", "json") != "json":
        raise refused("apply_async(serializer=…)", "Payloads are JSON: remove it.")
    found: SendOptions = {}
    countdown, eta = options.get("countdown"), _moment(options.get("eta"))
    expires = _moment(options.get("expires"))
    if countdown is not None:
        found["delay"] = max(0.0, float(countdown))
    elif eta is not None:
        found["due_at"] = aware(eta, timezone)
    if isinstance(expires, datetime):
        found["expires_at"] = aware(expires, timezone)
    elif expires is not None and eta is not None and countdown is None:
        found["expires_at"] = datetime.now(UTC) + timedelta(seconds=float(expires))
    elif expires is not None:  # Celery counts from now, the bus from when it is due
        found["expires"] = max(0.001, float(expires) - float(countdown or 0))
    if options.get("priority") is not None:
        found["priority"] = bus_priority(options["priority"])
    if options.get("headers"):
        found["headers"] = dict(options["headers"])
    if options.get("task_id") is not None:
        found["command_id"] = options["task_id"]
    return found


def _moment(given: Any) -> Any:
    """A time that a chain has carried is text."""
    return datetime.fromisoformat(given) if isinstance(given, str) else given


def aware(moment: datetime, timezone: str) -> datetime:
    """A time with a zone: that of the app where it has none."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=ZoneInfo(timezone))
