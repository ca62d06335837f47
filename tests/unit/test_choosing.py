"""Actions on many commands: what they read, and what they hold in memory."""

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from commandbus import HandlerRegistry, PermanentCommandError, SendRequest
from commandbus.domain.failure import Failure, FailureKind
from commandbus.operations import choosing
from commandbus.operations.bulk_troubleshooting import fingerprint
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue
from commandbus.testing import drain

ERROR = Failure(FailureKind.PERMANENT, "BROKEN", "no article 7", exception="OSError", place="shop.ship")
LARGE = "x" * 50_000


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncCommandBus]:
    monkeypatch.setattr(choosing, "PAGE", 10)
    with SyncCommandBus(f"sqlite:///{tmp_path / 'bus.db'}") as opened:
        yield opened


def send(bus: SyncCommandBus, count: int, data: Any = None) -> None:
    bus.send_many([SendRequest("d", "x", {"n": n, "text": data}) for n in range(count)])


def park(bus: SyncCommandBus) -> SyncTroubleshootingQueue:
    registry = HandlerRegistry()

    @registry.handler("d", "x")
    def refuse(command: object, context: object) -> None:
        raise PermanentCommandError("BROKEN", "never")

    drain(bus, registry)
    return SyncTroubleshootingQueue(bus)


def test_an_action_does_not_hold_the_payloads_of_all_its_commands(bus: SyncCommandBus) -> None:
    send(bus, 200, LARGE)
    edited = grown(lambda: bus.reprioritise_many("high", domain="d"))
    queue = park(bus)
    canceled = grown(lambda: queue.bulk("cancel", domain="d", reason="not needed"))
    assert max(edited, canceled) < 100 * len(LARGE)
    assert queue.count("d") == 0


def grown(action: Callable[[], Any]) -> int:
    """The most memory that an action had at once."""
    tracemalloc.start()
    try:
        assert action().done == 200
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_named_commands_are_found_by_their_ids(
    bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(bus, 50)
    asked: list[dict[str, Any]] = []
    query = choosing.query_commands

    def counted(scope: Any, **conditions: Any) -> Any:
        asked.append(conditions)
        return query(scope, **conditions)

    monkeypatch.setattr(choosing, "query_commands", counted)
    newest = bus.query_commands(domain="d", limit=1)[0].command_id
    assert bus.reprioritise_many("high", command_ids=[newest]).done == 1
    queue = park(bus)
    assert queue.bulk("retry", command_ids=[newest]).done == 1
    assert [conditions["scan"] for conditions in asked] == [1, 1]
    assert queue.count("d") == 49


def test_the_name_of_a_group_says_how_its_commands_failed() -> None:
    group = fingerprint("d", "x", ERROR)
    assert fingerprint("d", "x", replace(ERROR, message="no article 8", frame="shop.py:9")) == group
    changes = [{"code": "GONE"}, {"exception": "KeyError"}, {"place": "shop.bill"}]
    others = [fingerprint("d", "x", replace(ERROR, **change)) for change in changes]
    names = {group, *others, fingerprint("d", "x", None), fingerprint("d", "y", ERROR)}
    assert len(names) == 6
