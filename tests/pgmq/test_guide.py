"""The examples of the guide run, against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commandbus.engines.postgres.pgmq.installation import install
from commandbus.testing.postgres import create_database
from tests.postgres.database import server
from tests.tidy.test_docs import Block, blocks

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]

PAGE = "docs/guide/pgmq.md"
URL = "postgresql://app@localhost/shop"

EXAMPLES = [b for b in blocks() if b.place.startswith(f"{PAGE}:") and b.language == "python"]


@pytest.mark.parametrize("block", EXAMPLES, ids=[block.place for block in EXAMPLES])
def test_the_examples_run(block: Block, tmp_path: Path) -> None:
    assert URL in block.code
    url = create_database(server(os.getpid()))
    install(url)
    script = tmp_path / "example.py"
    script.write_text(block.code.replace(URL, url), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, f"{block.place} does not run:\n{run.stderr}"
