"""Which state of the code a measurement is about."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def revision(folder: Path = ROOT) -> str:
    """The commit with its date, and whether files differ from it; "an unknown commit" without git."""
    commit = _git(folder, "log", "-1", "--date=short", "--abbrev=8", "--format=commit %h of %cd")
    if not commit:
        return "an unknown commit"
    changed = _git(folder, "status", "--porcelain", "--", "src", "tests", "bench")
    return f"{commit}, with changes" if changed else commit


def _git(folder: Path, *words: str) -> str:
    try:
        run = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=30
        )
    except OSError:
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
