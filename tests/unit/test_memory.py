"""The memory engine belongs to the process that opened it."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest

from commandbus import InvalidOperationError
from commandbus.errors import ConfigurationError, NotOpen
from commandbus.store.session import Demand
from commandbus.sync import SyncCommandBus

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def in_child(function: Any, *arguments: Any) -> str:
    """What a function says in a forked child: its result, or the error that it raised."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def work() -> None:
        try:
            answers.put(str(function(*arguments)))
        except InvalidOperationError as error:
            answers.put(str(error))

    child = context.Process(target=work, daemon=True)
    child.start()
    answer: str = answers.get(timeout=30)
    child.join(30)
    return answer


def test_a_bus_from_before_a_fork_refuses_to_work_in_the_child() -> None:
    with SyncCommandBus("memory://") as bus:
        assert "opened before a fork" in in_child(bus.send, "shop", "order")
        assert "opened before a fork" in in_child(bus.open)
        bus.send("shop", "order")
        assert bus.stats("shop").ready == 1


def test_a_bus_that_is_opened_after_the_fork_works() -> None:
    bus = SyncCommandBus("memory://")

    def send() -> int:
        with bus:
            bus.send("shop", "order")
            return bus.stats("shop").ready

    assert in_child(send) == "1"


def test_a_bus_that_is_not_open_raises_not_open() -> None:
    with pytest.raises(NotOpen, match="with bus:"):
        SyncCommandBus("memory://").send("shop", "order")


@pytest.mark.parametrize("url", ["memory://", "sqlite:///bus.db"])
def test_an_engine_without_transactions_for_handlers_says_so(url: str) -> None:
    with pytest.raises(ConfigurationError, match="has no transactions for handlers"):
        SyncCommandBus(url).engine.begin(Demand(1, 1.0))
