"""A file and processes for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.os_processes.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as opened:
        yield opened


@pytest.fixture(params=["asyncio", "threads"])
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param
