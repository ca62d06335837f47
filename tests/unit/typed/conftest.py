"""A registry and a typed command for these tests."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from commandbus import HandlerRegistry
from commandbus.records import CommandType


@pytest.fixture
def payments() -> HandlerRegistry:
    return HandlerRegistry("payments")


@pytest.fixture
def charge(payments: HandlerRegistry) -> CommandType[..., Any]:
    @payments.command
    def charge(
        order: int,
        amount: Decimal = Decimal(1),
        note: float | None = None,
        *,
        tags: list[str] = [],  # noqa: B006 - each request gets a list of its own
    ) -> None:
        """Take the money."""

    return charge
