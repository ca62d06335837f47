"""Attacks run on every engine, as the conformance suite does."""

from __future__ import annotations

from tests.conformance.conftest import (
    bus,
    configuration,
    open_bus,
    pytest_generate_tests,
    runtime,
)

__all__ = ["bus", "configuration", "open_bus", "pytest_generate_tests", "runtime"]
