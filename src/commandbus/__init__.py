"""A durable command bus: send a command, and some worker carries it out, exactly one outcome each.

This module is the asyncio side; `commandbus.sync` is the same for threads. Its names are imported on
first use, from the one list in `commandbus.names`, so that the command line starts quickly.
`commandbus.records` has what calls return, `commandbus.errors` every error, `commandbus.processes`
and `commandbus.pgmq` what concerns these, `commandbus.retry` the backoff functions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__distribution__ = "durable-commandbus"  # before the imports below, which look for it

from commandbus.installation import warn_of_namesake
from commandbus.settings import VERSION

__version__ = VERSION
warn_of_namesake(__file__)

if TYPE_CHECKING:
    from commandbus.names import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name == "__all__" or not name.startswith("_"):
            public = _public()
            globals().update(public, __all__=sorted(public))
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_public())


def _public() -> dict[str, Any]:
    names = vars(import_module("commandbus.names"))
    return {name: value for name, value in names.items() if name[0].isalpha()}
