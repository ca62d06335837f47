"""`crontab` and intervals: the times of beat entries, as the schedules of the bus have them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from commandbus.domain.schedule import Schedule
from commandbus.errors import ConfigurationError
from commandbus.integrations.celery.places import refused

Field = int | str | Iterable[int]


class crontab:  # noqa: N801 - Celery's name
    """A cron expression, by Celery's arguments. Times are those of `app.conf.timezone`."""

    def __init__(
        self,
        minute: Field = "*",
        hour: Field = "*",
        day_of_week: Field = "*",
        day_of_month: Field = "*",
        month_of_year: Field = "*",
        **others: Any,
    ) -> None:
        if others:
            raise refused(
                f"crontab({', '.join(others)}=…)",
                "The time zone is that of app.conf.timezone, and the clock that of the store.",
            )
        if day_of_week != "*" and day_of_month != "*":
            raise refused(
                "crontab with both day_of_week and day_of_month",
                "Celery runs on days that match both, cron on days that match either: keep one of "
                "them, and let the task return on the other days.",
            )
        fields = (minute, hour, day_of_month, month_of_year, day_of_week)
        self.cron = " ".join(_text(field) for field in fields)
        try:
            Schedule(name="beat", domain="celery", command_type="beat", cron=self.cron).checked()
        except ConfigurationError as error:
            raise refused(f"crontab with the fields {self.cron}", str(error)) from None

    def __repr__(self) -> str:
        return f"<crontab: {self.cron}>"


class schedule:  # noqa: N801 - Celery's name
    """An interval."""

    def __init__(self, run_every: float | timedelta) -> None:
        self.seconds = run_every.total_seconds() if isinstance(run_every, timedelta) else run_every


def _text(field: Field) -> str:
    if isinstance(field, int | str):
        # Of the names of days and months, Celery reads the first three letters.
        return re.sub(r"([A-Za-z]{3})[A-Za-z]+", r"\1", str(field).replace(" ", ""))
    return ",".join(str(one) for one in sorted(field))


def when(given: Any, place: str) -> dict[str, Any]:
    """The `cron` or `every` of a schedule. Raises NotPortable for anything but a crontab and an
    interval of at least a second."""
    if isinstance(given, crontab):
        return {"cron": given.cron}
    if isinstance(given, schedule):
        given = given.seconds
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, bool) or not isinstance(given, int | float) or given < 1:
        raise refused(
            f"the schedule {given!r}", "Give a crontab(…), or an interval of 1 second or more.", place
        )
    return {"every": float(given)}


def __getattr__(name: str) -> Any:
    if name == "solar":
        raise refused("celery.schedules.solar", "Use a crontab, and compute the sun in the task.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
