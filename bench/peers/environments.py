"""An environment per peer, in a cache folder outside the project; or the reason why there is none.

COMMANDBUS_BENCH_CACHE names another folder. Remove the folder to get the newest versions of all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bench.peers.catalogue import Subject

DRIVERS = Path(__file__).parent / "drivers"
PATIENCE_SECONDS = 240


class NotInstalled(RuntimeError):  # noqa: N818 - what happened, as the page reports it
    """A peer cannot be installed here; says why."""


@dataclass(frozen=True)
class Environment:
    """How to start a driver."""

    command: tuple[str, ...]
    variables: dict[str, str]
    version: str


def cache_folder() -> Path:
    named = os.environ.get("COMMANDBUS_BENCH_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "commandbus-bench"


def environment(subject: Subject) -> Environment:
    """Made when it is not there yet."""
    driver = str(DRIVERS / subject.driver)
    if not subject.packages:
        return Environment((sys.executable, driver), {}, version("durable-commandbus"))
    mark = hashlib.sha256("\n".join(subject.packages).encode()).hexdigest()[:8]
    folder = cache_folder() / f"{subject.version_of or subject.name}-{mark}"
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (_install_node if subject.is_node else _install_python)(folder, subject.packages)
        (folder / "installed").touch()
    if subject.is_node:
        modules = folder / "node_modules"
        found = json.loads((modules / _package(subject) / "package.json").read_text())["version"]
        return Environment(("node", driver), {"NODE_PATH": str(modules)}, found)
    python = str(folder / "bin" / "python")
    wanted = f"from importlib.metadata import version; print(version({_package(subject)!r}))"
    return Environment((python, driver), {}, run([python, "-c", wanted]).strip())


def _package(subject: Subject) -> str:
    return subject.version_of or re.split(r"[\[@<>=]", subject.packages[0], maxsplit=1)[0]


def _install_python(folder: Path, packages: tuple[str, ...]) -> None:
    run([sys.executable, "-m", "venv", str(folder)])
    quiet = ["--quiet", "--disable-pip-version-check"]
    run([str(folder / "bin" / "python"), "-m", "pip", "install", *quiet, *packages])


def _install_node(folder: Path, packages: tuple[str, ...]) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotInstalled("needs Node.js and npm, which this machine does not have")
    run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *packages])


def run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        # Whose package index it was is nobody's business but the user's.
        reason = re.sub(r"\S+://\S+", "…", (lines or [f"{command[0]} failed"])[-1])
        raise NotInstalled(reason.strip()[:200])
    return done.stdout
