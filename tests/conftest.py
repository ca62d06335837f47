"""Long tests begin first, so that no worker of pytest-xdist begins one when the others have ended; and
which cases run of tests that are marked `alternating`."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.support.extent import EVERYTHING


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests stay until the end: the garbage collector need not look at them, neither while
    they are found nor when it runs in one of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not EVERYTHING and (left_out := [item for item in items if _is_left_out(item)]):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _is_left_out(item)]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _is_left_out(item: pytest.Item) -> bool:
    """Every second case of a test that is marked so: two neighbours in one parameter differ in this."""
    marked = item.get_closest_marker("alternating") is not None
    return marked and sum(item.callspec.indices.values()) % 2 == 1  # type: ignore[attr-defined]
