"""Whether a tag may be released: `python -m tests.wheels.release v1.2.3`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from commandbus.settings import VERSION

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def problems(tag: str, version: str, changelog: str) -> list[str]:
    found = []
    if tag != f"v{version}":
        found.append(f"The tag {tag!r} is not v{version}: set VERSION in settings.py, or move the tag.")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD`.")
    return found


if __name__ == "__main__":
    told = problems(" ".join(sys.argv[1:]), VERSION, CHANGELOG.read_text(encoding="utf-8"))
    print("\n".join(told) or f"{VERSION} may be released")
    sys.exit(bool(told))
