"""Wheels and the sdist, built as `make dist` builds them, and wheels of what is installed here."""

from __future__ import annotations

import csv
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 100


def build(folder: Path, *targets: str, source: Path = ROOT) -> None:
    kinds = [word for target in targets for word in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", *kinds, "-d", str(folder)]
    ended = subprocess.run(
        command, cwd=source, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr


def add_requirements(wheel: Path, extras: set[str], house: Path) -> None:
    """Put wheels of all that a wheel says it needs into a folder, made from what is installed here: so
    pip installs it without a network, and what the wheel forgot to name is missing."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (n for n in opened.namelist() if n.endswith(".dist-info/METADATA"))
        lines = opened.read(name).decode().splitlines()
    prefix = "Requires-Dist: "
    wanted = [Requirement(line.removeprefix(prefix)) for line in lines if line.startswith(prefix)]
    done: set[str] = set()
    open_ones = [(requirement, extras) for requirement in wanted]
    while open_ones:
        requirement, given = open_ones.pop()
        if not _applies(requirement, given):
            continue
        key = f"{canonicalize_name(requirement.name)}[{','.join(sorted(requirement.extras))}]"
        if key in done:
            continue
        done.add(key)
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError as error:
            raise AssertionError(f"{requirement} is needed and not installed here") from error
        open_ones += [(Requirement(line), requirement.extras) for line in found.requires or ()]
        _pack(found, house)


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


def _pack(found: Distribution, house: Path) -> None:
    """A wheel of a distribution that is installed. Its programs are made by pip, from the metadata."""
    lines = (found.read_text("WHEEL") or "").splitlines()
    tags = [line.removeprefix("Tag: ").split("-") for line in lines if line.startswith("Tag: ")]
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    name = canonicalize_name(found.name).replace("-", "_")
    wheel = house / f"{name}-{found.version}-{tag}.whl"
    if wheel.exists():
        return
    made_by_pip = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")
    with zipfile.ZipFile(wheel, "w") as written:
        record = ""
        for path, file in _files(found):
            if file.name == "RECORD":
                record = path
            if file.name not in made_by_pip and "__pycache__" not in file.parts:
                written.write(file, path)
        rows = [f'"{entry}",,' if "," in entry else f"{entry},," for entry in written.namelist()]
        written.writestr(record, "\n".join([*rows, f"{record},,"]) + "\n")


def _files(found: Distribution) -> Iterator[tuple[str, Path]]:
    for row in csv.reader((found.read_text("RECORD") or "").splitlines()):
        file = Path(str(found.locate_file(row[0])))
        if not row[0].startswith(("..", "/")) and file.exists():
            yield row[0], file
