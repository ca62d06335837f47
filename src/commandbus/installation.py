"""Whether the package is the one that `durable-commandbus` installed.

Another distribution, called `commandbus`, installs a package of the same name. Installed into one
environment, the later one replaces `commandbus/__init__.py` of the earlier one, and removing either
deletes it.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

DISTRIBUTION = "durable-commandbus"
_CURE = (
    "run `pip uninstall --yes commandbus durable-commandbus`, then install durable-commandbus again; a "
    "program that needs the other one needs an environment of its own."
)


def check_package() -> None:
    """Raises ImportError where `commandbus/__init__.py` is not ours."""
    package = sys.modules["commandbus"]
    if getattr(package, "__distribution__", None) != DISTRIBUTION:
        file = getattr(package, "__file__", None) or "commandbus/__init__.py"
        raise ImportError(
            f"{file} does not belong to durable-commandbus: the unrelated distribution `commandbus` "
            f"has replaced or removed it; {_CURE}"
        )


def warn_of_namesake(file: str) -> None:
    """Warns when the other distribution is installed beside ours, whose `__init__.py` is `file`."""
    try:
        beside = [entry.name for entry in Path(file).parents[1].glob("commandbus-*-info")]
    except OSError:  # not a folder, such as a zip file
        return
    if beside:
        warnings.warn(
            f"The unrelated distribution `commandbus` ({beside[0]}) is installed beside "
            "durable-commandbus, and both own the folder `commandbus`: programs that use the other one "
            f"fail, and removing it breaks this one. To repair it, {_CURE}",
            RuntimeWarning,
            stacklevel=3,
        )
