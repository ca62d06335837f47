"""A worker obeys signals also when the reader of its output is gone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.helpers import PROGRAM, clean_environment

APP = """
import pathlib
from commandbus import HandlerRegistry

registry = HandlerRegistry()

@registry.handler("shop", "Wait")
def wait(command, context):
    pathlib.Path("begun").touch()
"""


@pytest.mark.parametrize("options", [[], ["--threads"], ["--processes", "2"]], ids=str)
def test_sigterm_ends_a_worker_whose_output_has_no_reader(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "shop.py").write_text(APP)
    reading, writing = os.pipe()
    with subprocess.Popen(
        [*PROGRAM, "worker", "shop", *options],
        cwd=tmp_path,
        env=clean_environment() | {"COMMANDBUS_URL": f"sqlite:///{tmp_path}/jobs.db"},
        stdout=writing,
        stderr=writing,
    ) as worker:
        try:
            os.close(writing)
            with os.fdopen(reading) as output:
                for line in output:
                    if "serves" in line:
                        break
            # From here on every print of the worker raises BrokenPipeError.
            worker.send_signal(signal.SIGTERM)
            worker.wait(20)
            assert worker.returncode == 0
        finally:
            worker.kill()
