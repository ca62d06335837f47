"""Names of Celery that have no equivalent here, and what to write instead."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

from commandbus.integrations.celery.places import refused

PACKAGE = __name__.rpartition(".")[0]
MODULES = {
    "signals": "Use a base class with on_success and on_failure, or @app.middleware.",
    "chunks": "Send a group of tasks that take lists.",
    "xmap": "Send a group of tasks that take lists.",
    "xstarmap": "Send a group of tasks that take lists.",
    "bootsteps": "Use @app.lifespan.",
}
"""Modules of Celery, and names that a program imports from it."""

TASKS = {
    "chunks": "Send a group of tasks that take lists.",
    "map": "Send a group of tasks.",
    "starmap": "Send a group of tasks.",
    "replace": "Send the other task, and return.",
    "add_to_chord": "Send the whole header at once.",
}
REQUESTS = dict.fromkeys(
    (
        "callbacks",
        "errbacks",
        "chain",
        "chord",
        "group",
        "group_index",
        "reply_to",
        "origin",
        "eta",
        "expires",
        "properties",
        "shadow",
        "utc",
        "loglevel",
        "logfile",
        "ignore_result",
        "stamps",
    ),
    "Give headers={…} to apply_async: they are attributes of self.request.",
)
RESULTS = {
    "forget": "Remove it: `commandbus db prune` forgets old results.",
    "children": "Keep the results of the tasks that a task sends by itself.",
    "collect": "Keep the results of the tasks that a task sends by itself.",
    "graph": "Use `commandbus show`.",
    "then": "Use apply_async(link=…).",
    "save": "Keep the ids of its results: [one.id for one in group_result].",
    "restore": "Keep the ids of its results, and make AsyncResult(id) of each.",
    "iterate": "Call get() of each result.",
    "as_tuple": "Keep the id.",
    "backend": "Remove it: results are kept in the store.",
}
SIGNATURES = {
    "link": "Write signature | callback, or apply_async(link=callback).",
    "freeze": "Give a task_id to apply_async.",
    "replace": "Make another signature.",
    "stamp": "Give headers to apply_async.",
}


def lack(what: str, name: str, cures: dict[str, str]) -> Any:
    """For `__getattr__`: raises NotPortable for a name of Celery, else AttributeError."""
    if name in cures:
        raise refused(f"{what}.{name}", cures[name])
    raise AttributeError(f"{what} has no attribute {name!r}")


class _Modules(MetaPathFinder):
    """Asked after all others: the import of a module that is not here says what to write instead."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        name = fullname.removeprefix(f"{PACKAGE}.")
        if name != fullname and not name.startswith("_"):
            cure = MODULES.get(name.partition(".")[0], 'See "Coming from Celery" in the guide.')
            raise refused(f"celery.{name}", cure)


sys.meta_path.append(_Modules())
