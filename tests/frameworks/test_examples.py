"""Every example runs with its one command, ends by itself and does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUNS = {
    "fastapi_shop.py": (["fastapi", "sqlalchemy", "httpx"], "'state': 'shipped'"),
    "django_shop/play.py": (["django"], "pen (shipped) · the admin shows its task: True"),
    "flask_shop.py": (["flask"], "order 7: 9.50 EUR charged"),
    "pipeline.py": ([], "read 10 files: {'files': 10, 'sales': "),
    "agent.py": ([], "approved by ann: refunded 42 EUR"),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_with_one_command(name: str, tmp_path: Path) -> None:
    needs, printed = RUNS[name]
    for package in needs:
        reason = f"THE EXAMPLE {name} IS NOT RUN: {package} is not installed"
        pytest.importorskip(package, reason=reason)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COMMANDBUS_", "DJANGO_"))}
    run = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert printed in run.stdout


def test_every_example_is_run_and_listed() -> None:
    scripts = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    parts = {name for name in scripts if name.startswith("django_shop/") and name not in RUNS}
    assert scripts - parts == set(RUNS)
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert [name for name in RUNS if f"examples/{name}" not in page] == []
