"""Virtual environments with what a page says to install, and nothing else.

Nothing is downloaded: an environment has links to those of the installed distributions that the page
names, with everything that they require.
"""

from __future__ import annotations

import re
import venv
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.tidy.project import ROOT

PROJECT = "durable-commandbus"
_INSTALL = re.compile(r"pip install (?P<what>[^`\n#|]+)")
_EXTRAS = re.compile(rf"{PROJECT}\[(?P<extras>[a-z,]+)\]")
_NAMED = re.compile(r"[a-z][\w.-]*(?:\[[\w,]+\])?")


def stated(text: str) -> frozenset[str]:
    """The requirements that a text says to install: by `pip install …`, or `durable-commandbus[…]`."""
    found = {f"{PROJECT}[{match['extras']}]" for match in _EXTRAS.finditer(text)}
    for command in _INSTALL.finditer(text):
        words = (word.strip("'\"()") for word in command["what"].split())
        found |= {word for word in words if _NAMED.fullmatch(word) and not word.startswith("-")}
    return frozenset(found)


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """The distributions of these requirements and of all that they require, by name. What is not
    installed here is left out: its import fails in the environment as well."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(one), "") for one in requirements]
    while waiting:
        requirement, wanted_by = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": wanted_by}):
            continue
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:
            continue
        name = installed.metadata["Name"].lower()
        found[name] = installed
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(Requirement(line), extra) for line in installed.requires or ()]
    return found


@cache
def interpreter_with(requirements: frozenset[str], folder: Path) -> Path:
    """The interpreter of an environment below `folder` that has these requirements."""
    home = folder / f"environment-{interpreter_with.cache_info().currsize}"
    context = venv.EnvBuilder(symlinks=True).ensure_directories(str(home))
    venv.EnvBuilder(symlinks=True).create(str(home))
    packages = next(home.glob("[Ll]ib*/**/site-packages"))
    for installed in closure([PROJECT, *requirements]).values():
        for file in installed.files or ():
            top = file.parts[0]
            source, target = Path(str(installed.locate_file(top))), packages / top
            if top != ".." and not top.endswith(".pth") and source.exists() and not target.exists():
                target.symlink_to(source, target_is_directory=source.is_dir())
    source = packages / "commandbus"
    if not source.exists():
        source.symlink_to(ROOT / "src" / "commandbus", target_is_directory=True)
    return Path(context.env_exe)
