"""Where in the user's own code something is, for the errors of what cannot be ported."""

from __future__ import annotations

import sys

from commandbus.integrations.celery.exceptions import NotPortable

_OURS = (__name__.rpartition(".")[0], "importlib")


def caller() -> str:
    """File and line of the nearest frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def refused(what: str, cure: str, place: str | None = None) -> NotPortable:
    """The error for what has no equivalent: where it is written, and what to write instead."""
    return NotPortable(f"{place or caller()}: {what} cannot be ported. {cure}")
