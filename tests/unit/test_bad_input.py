"""What is wrong is refused at the door, by a typed error that names the argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commandbus import CircuitBreaker, Schedule, SendRequest
from commandbus.errors import (
    CommandBusError,
    ConfigurationError,
    InvalidArgumentError,
    InvalidOperationError,
)
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker

ANY: Any = None
NOBODY = "0" * 32


@pytest.fixture(params=["memory://", "sqlite:///{}/bus.db"], ids=["memory", "sqlite"])
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SyncCommandBus]:
    with SyncCommandBus(request.param.format(tmp_path)) as opened:
        yield opened


def schedule(**wrong: Any) -> Schedule:
    return Schedule(**{"name": "nightly", "domain": "reports", "command_type": "build"} | wrong)


def worker(bus: SyncCommandBus) -> SyncWorker:
    return SyncWorker(bus, "orders")


def tsq(bus: SyncCommandBus) -> SyncTroubleshootingQueue:
    return SyncTroubleshootingQueue(bus)


LIMITS: list[Any] = [0, -1, 2**70, "x", None, True, 2.5]

CALLS: list[tuple[str, Callable[[SyncCommandBus], object]]] = [
    *[(f"query_commands limit {n!r}", lambda b, n=n: b.query_commands(limit=n)) for n in LIMITS],
    *[(f"list_batches limit {n!r}", lambda b, n=n: b.list_batches(limit=n)) for n in LIMITS],
    *[(f"receive {n!r}", lambda b, n=n: worker(b).receive(n)) for n in LIMITS],
    *[
        (f"query_commands after {c!r}", lambda b, c=c: b.query_commands(after=c))
        for c in ("9" * 30, "x", "", 5, b"1")
    ],
    *[(f"send_many {v!r}", lambda b, v=v: b.send_many(v)) for v in (ANY, 5, "abc", [None])],
    *[(f"create_batch {v!r}", lambda b, v=v: b.create_batch(v)) for v in (ANY, 5, "abc", [None], [])],
    ("create_batch name", lambda b: b.create_batch([SendRequest("orders", "ship")], name=5)),  # type: ignore[arg-type]
    ("bulk limit", lambda b: tsq(b).bulk("retry", domain="orders", limit="x")),  # type: ignore[arg-type]
    ("query domain", lambda b: b.query_commands(domain=5)),  # type: ignore[arg-type]
    ("query tag", lambda b: b.query_commands(tag=5)),  # type: ignore[arg-type]
    ("put_schedule", lambda b: b.put_schedule("x")),  # type: ignore[arg-type]
    ("get_schedule number", lambda b: b.get_schedule(5)),  # type: ignore[arg-type]
    ("get_schedule surrogate", lambda b: b.get_schedule("\ud800")),
    ("delete_schedule surrogate", lambda b: b.delete_schedule("\ud800")),
    *[
        (f"schedule {wrong}", lambda b, wrong=wrong: b.put_schedule(schedule(**wrong)))
        for wrong in (
            {},
            {"every": "x"},
            {"every": -1},
            {"every": float("nan")},
            {"every": 5, "cron": "* * * * *"},
            {"every": 5, "timezone": 5},
            {"every": 5, "misfire": "x"},
            {"every": 5, "data": {1, 2}},
            {"every": 5, "data": float("nan")},
            {"cron": 5},
            {"cron": "61 * * * *"},
            {"cron": "* * * * *", "timezone": "Mars/Olympus"},
        )
    ],
    *[
        (f"add_to_batch {v!r}", lambda b, v=v: b.add_to_batch("0" * 32, v))
        for v in (None, "abc", [None], [])
    ],
    ("unique", lambda b: b.send("orders", "ship", unique_key="k", unique="replace")),  # type: ignore[arg-type]
    ("open_breaker reason", lambda b: b.open_breaker("bank", reason=object())),  # type: ignore[arg-type]
    *[(f"acting {who!r}", lambda b, who=who: b.acting(who)) for who in (None, 5, "", "x" * 201, "\0")],
    ("breaker threshold", lambda b: CircuitBreaker("bank", threshold="5")),  # type: ignore[arg-type]
    ("breaker probes", lambda b: CircuitBreaker("bank", probes=0)),
    ("breaker cooldown", lambda b: CircuitBreaker("bank", cooldown="x")),  # type: ignore[arg-type]
    ("worker domain", lambda b: SyncWorker(b, 5)),  # type: ignore[arg-type]
    ("worker without domain", lambda b: SyncWorker(b, [])),
    ("worker registry", lambda b: SyncWorker(b, "orders", "registry")),  # type: ignore[arg-type]
    ("wait timeout", lambda b: b.wait("0" * 32, timeout="x")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
def test_wrong_arguments_are_refused(
    bus: SyncCommandBus, call: Callable[[SyncCommandBus], object]
) -> None:
    with pytest.raises(CommandBusError) as refused:
        call(bus)
    assert len(str(refused.value)) > 15


def test_a_bus_that_is_closed_accepts_nothing(bus: SyncCommandBus) -> None:
    bus.close()
    with pytest.raises(InvalidOperationError, match="open"):
        bus.send("orders", "ship")


@pytest.mark.parametrize("url", [5, "", "ftp://host", "sqlite:", b"memory://"])
def test_a_wrong_url_is_refused(url: Any) -> None:
    with pytest.raises(ConfigurationError):
        SyncCommandBus(url)


@pytest.mark.parametrize("option", ["tags", "requires"])
def test_a_text_instead_of_a_list_is_refused_where_the_request_is_made(option: str) -> None:
    wrong: Any = {option: "urgent"}
    with pytest.raises(InvalidArgumentError, match=f"{option} must be a list of texts, not 'urgent'"):
        SendRequest("orders", "ship", **wrong)
    with pytest.raises(InvalidArgumentError, match=f"{option} must be a list of texts, not 'urgent'"):
        SendRequest("orders", "ship").options(**wrong)
