"""An application that comes from Celery, for these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commandbus.integrations.celery import (
    Celery,
)
from commandbus.sync import SyncCommandBus


@pytest.fixture
def app(sync_command_bus: SyncCommandBus) -> Iterator[Celery]:
    """An app on a store in memory."""
    made = Celery("shop")
    made.bus = sync_command_bus
    yield made
    made.bus = None
