"""What a worker logs about the ends of runs: a command that parks is an error, a retry a warning."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from commandbus import (
    BusinessRuleException,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    TransientCommandError,
)
from commandbus.testing import Configuration


def fail_twice(command: Any, context: Any) -> None:
    raise TransientCommandError("DOWN")


def refuse(command: Any, context: Any) -> None:
    raise PermanentCommandError("NO_CITY")


def reject(command: Any, context: Any) -> None:
    raise BusinessRuleException("NO_STOCK", "only 2 are left\nof 5")


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (
            fail_twice,
            [
                (logging.WARNING, "attempt 1: DOWN, tried again later"),
                (logging.ERROR, "attempt 2: DOWN, parked"),
            ],
        ),
        (refuse, [(logging.ERROR, "attempt 1: NO_CITY, parked")]),
        (reject, [(logging.INFO, "attempt 1: NO_STOCK: only 2 are left, failed")]),
    ],
)
@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_the_level_says_what_becomes_of_a_command(
    runtime: str, handler: Any, expected: list[tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    registry = HandlerRegistry()
    registry.register("orders", "ship", handler)
    policy = RetryPolicy(max_attempts=2, backoff_schedule=[0])
    bus = Configuration("memory", "memory://").open(runtime, real_time=True)
    try:
        with (
            caplog.at_level(logging.INFO, logger="commandbus.worker"),
            bus.run_worker(registry, retry_policy=policy),
        ):
            command_id = bus.send()
            bus.wait(command_id)
    finally:
        bus.close()
    logged = [r for r in caplog.records if getattr(r, "command_id", None) == str(command_id)]
    assert [record.levelno for record in logged] == [level for level, _ in expected]
    for record, (_, ending) in zip(logged, expected, strict=True):
        assert record.getMessage().endswith(ending)
