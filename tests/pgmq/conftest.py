"""Databases with PGMQ in two versions: 1.13 from its SQL alone, and 1.11 as an extension."""

from __future__ import annotations

import os

import pytest

from commandbus.engines.postgres.pgmq.installation import install
from commandbus.testing.postgres import create_database
from tests.pgmq.extension import database_with_offer
from tests.postgres.database import server


@pytest.fixture(scope="module", params=["SQL only", "extension"])
def versioned_url(request: pytest.FixtureRequest) -> str:
    offered = request.param == "extension"
    url = database_with_offer() if offered else create_database(server(os.getpid()))
    assert str(install(url)).startswith(request.param)
    return url
