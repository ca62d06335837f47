"""What a figure depends on: the machine, the versions and the settings."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.lab import Lab
from tests.support.revision import revision


def about(lab: Lab, repeat: int, scale: float) -> dict[str, Any]:
    return {
        "revision": revision(),
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "cpus": str(lab.cpus or ""),
        "processor": _first(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "memory_gb": round(int(_first(Path("/proc/meminfo"), "MemTotal").split()[0]) / 1024**2),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "node": _node(),
        "sqlite": sqlite3.sqlite_version,
        "postgres": lab.server.binaries.version,
        "settings": lab.settings(),
        "repeat": repeat,
        "scale": scale,
    }


def _first(path: Path, key: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "0")


def _node() -> str:
    program = shutil.which("node")
    if program is None:
        return "none"
    return subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False
    ).stdout.strip()
