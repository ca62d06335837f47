"""Attacks run on every engine, as the conformance suite does."""

from __future__ import annotations

from tests.conformance.conftest import (
    bus,
    configuration,
    open_bus,
    pytest_collection_modifyitems,
    runtime,
)

__all__ = ["bus", "configuration", "open_bus", "pytest_collection_modifyitems", "runtime"]
