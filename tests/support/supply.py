"""What the project is made of: `python -m tests.support.supply sbom FILE` and `… audit`.

The list is a CycloneDX document, made from the metadata of what is installed and nothing else. The
audit asks pip-audit for known vulnerabilities where it is installed and can reach its data; where it
cannot, that is said loudly, for a check that did not run has found nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

PROJECT = "durable-commandbus"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?[^;]*(;.*)?")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needs_of(found: Distribution) -> Iterator[str]:
    """Names of what a distribution needs, extras included, that is installed."""
    for line in found.requires or ():
        match = _REQUIREMENT.fullmatch(line)
        if match and installed(match[1]) is not None:
            yield normal(match[1])


@cache
def installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def closure(root: str) -> dict[str, Distribution]:
    """A distribution and all that it leads to, by name."""
    found: dict[str, Distribution] = {}
    open_ones = [normal(root)]
    while open_ones:
        name = open_ones.pop()
        here = None if name in found else installed(name)
        if here is not None:
            found[name] = here
            open_ones += needs_of(here)
    return found


def sbom(root: str = PROJECT) -> dict[str, Any]:
    """A CycloneDX document; the same for the same packages, whoever makes it and wherever."""
    packages = closure(root)
    parts = {name: _component(name, packages[name]) for name in sorted(packages)}
    own = parts.pop(normal(root))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own | {"type": "application"}},
        "components": list(parts.values()),
        "dependencies": [
            {
                "ref": _purl(name, found),
                "dependsOn": sorted({_purl(n, packages[n]) for n in needs_of(found) if n != name}),
            }
            for name, found in sorted(packages.items())
        ],
    }


def _component(name: str, found: Distribution) -> dict[str, Any]:
    stated = {name: text for name, text in found.metadata.items() if name.startswith("License")}  # type: ignore[attr-defined]
    licence = stated.get("License-Expression") or stated.get("License")
    purl = _purl(name, found)
    about: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name}
    about |= {"version": found.version, "purl": purl}
    if licence and len(licence) < 100:
        about["licenses"] = [{"license": {"name": licence}}]
    return about


def _purl(name: str, found: Distribution) -> str:
    return f"pkg:pypi/{name}@{found.version}"


def audit() -> int:
    """0: nothing known against any package; 1: something is; 2: it could not be checked."""
    if installed("pip-audit") is None:
        return _not_checked("pip-audit is not installed; `pip install pip-audit` and try again")
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return _not_checked(f"pip-audit could not finish: {reason}")
    harmful = [one for one in found if one.get("vulns")]
    for one in harmful:
        print(f"{one['name']} {one['version']}: {', '.join(v['id'] for v in one['vulns'])}")
    print(f"{len(found)} packages checked, {len(harmful)} with known vulnerabilities")
    return 1 if harmful else 0


def _not_checked(reason: str) -> int:
    print(f"!!! SKIPPED: dependencies were NOT checked for vulnerabilities: {reason}", file=sys.stderr)
    return 2


def main(arguments: list[str]) -> int:
    match arguments:
        case ["sbom", file]:
            document = json.dumps(sbom(), indent=2, sort_keys=True)
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(document + "\n", encoding="utf-8")
            print(f"{file}: {len(sbom()['components'])} components")
            return 0
        case ["audit"]:
            return audit()
        case _:
            print(__doc__)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
