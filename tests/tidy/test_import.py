"""Importing the package is cheap and has no effects: extras stay unloaded, nothing starts."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

EXTRAS = [
    "aiohttp",
    "anyio",
    "asyncpg",
    "click",
    "django",
    "httpx",
    "jinja2",
    "opentelemetry",
    "psycopg",
    "psycopg_pool",
    "pydantic",
    "pytest",
    "rich",
    "sqlalchemy",
    "starlette",
    "typer",
    "uvicorn",
    "uvloop",
]

PROBE = """
import importlib, json, sys, threading
importlib.import_module(sys.argv[1])
print(json.dumps({"modules": sorted(sys.modules), "threads": threading.active_count()}))
"""


def state_after_import(module: str, folder: Path) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", PROBE, module],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    state: dict[str, Any] = json.loads(run.stdout)
    return state


@pytest.mark.parametrize(
    "module", ["commandbus", "commandbus.names", "commandbus.sync", "commandbus.records"]
)
def test_import_loads_no_extra_and_has_no_effects(module: str, tmp_path: Path) -> None:
    state = state_after_import(module, tmp_path)

    loaded = [extra for extra in EXTRAS if extra in state["modules"]]
    assert not loaded, f"Import {', '.join(loaded)} where it is used, inside the function."
    assert state["threads"] == 1, "Start threads when a bus or a worker starts."
    assert not list(tmp_path.iterdir()), "Create files when a bus opens."


def test_an_extra_brings_what_the_code_imports() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    code = "\n".join(file.read_text(encoding="utf-8") for file in (root / "src").rglob("*.py"))
    for extra, requirements in project["optional-dependencies"].items():
        if extra in ("all", "test", "dev", "fastapi"):  # FastAPI's apps are Starlette's to the code
            continue
        for requirement in requirements:
            name = re.match(r"[\w-]+", requirement)[0].replace("-", "_").removesuffix("_api")
            assert re.search(rf"^\s*(import|from) {name}\b", code, re.MULTILINE), f"[{extra}]: {name}"
