"""Whether this process is a child that imports the handlers of its worker.

A script without `if __name__ == "__main__":` would start its worker again in there, and that worker
children of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commandbus.errors import ConfigurationError

_preparing = False


@contextmanager
def prepare() -> Iterator[None]:
    global _preparing
    _preparing = True
    try:
        yield
    finally:
        _preparing = False


def check_not_preparing() -> None:
    """Raises ConfigurationError in such a child."""
    if _preparing:
        raise ConfigurationError(
            "The script of the worker starts a worker whenever it is imported, and a child process for "
            'isolation="process" has to import it: put what starts the worker below '
            'if __name__ == "__main__":, or the handlers in a module of their own.'
        )
