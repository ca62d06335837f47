"""The fixtures of the suite; `configuration` and `runtime` are for its user to define."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from commandbus.testing.harness import Configuration, Harness

OpenBus = Callable[..., Harness]


@pytest.fixture
def open_bus(configuration: Configuration, runtime: str) -> Iterator[OpenBus]:
    """Opens buses with settings of a test's own. Where stores are durable, all are on one store."""
    with ExitStack() as opened:

        def open_one(**settings: Any) -> Harness:
            harness = configuration.open(runtime, **settings)
            opened.callback(harness.close)
            return harness

        yield open_one


@pytest.fixture
def bus(open_bus: OpenBus) -> Harness:
    """A bus with default settings, on an empty store."""
    return open_bus()
