"""`commandbus.send` in SQL takes whatever PostgreSQL's types hold. A call is refused, or every read and
every action works afterwards: one accepted row must not hide the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from hypothesis import strategies as st

from commandbus import CommandStatus, HandlerRegistry
from commandbus.domain.lifecycle import FINAL
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from tests.fuzz.fuzzing import fuzzed, names, texts
from tests.postgres.database import empty_url

pytestmark = pytest.mark.postgres
DOMAIN, TYPE = "door", "note"
CALL: LiteralString = """select commandbus.send(%(domain)s, %(type)s, %(data)s::json,
    priority => %(priority)s::integer, delay => %(delay)s::interval, due_at => %(due_at)s::timestamptz,
    expires_at => %(expires_at)s::timestamptz, max_attempts => %(max_attempts)s::integer,
    unique_key => %(unique_key)s, tags => %(tags)s, headers => %(headers)s::json,
    group_key => %(group_key)s, reply_to => %(reply_to)s)"""
NUMBERS = (
    "1e400",
    "-1e400",
    "1e-400",
    "0e99999",
    "1" * 5_000,
    "-0",
    "0.1",
    "1e308",
    str(2**64),
    str(2**70),
)
numbers = st.one_of(
    st.sampled_from(NUMBERS), st.integers().map(str), st.floats(allow_nan=False).map(str)
)
depths = st.builds(
    lambda depth, pair, inner: pair[0] * depth + inner + pair[1] * depth,
    st.sampled_from((1, 63, 64, 65, 200, 3_000)),
    st.sampled_from((("[", "]"), ('{"a":', "}"))),
    st.one_of(numbers, st.just("null")),
)
odd = st.sampled_from(
    ('{"a": 1, "a": 2}', '"\\u0000"', '"\\ud800"', "{", "", "NaN", "Infinity", '  [ 1 , {"b" : 2} ]  ')
)
documents = st.one_of(numbers, depths, odd, st.none())
intervals = st.sampled_from(
    ("0", "-1 hour", "1 microsecond", "100000 years", "-100000 years", "178000000 years",
     "1 mon -1 mon", "infinity", "-infinity")
)  # fmt: skip
moments = st.sampled_from(
    ("now", "epoch", "infinity", "-infinity", "294276-12-31", "4713-01-01 BC",
     "0001-01-01", "9999-12-31 23:59:59.999999+00", "10000-01-01", "2024-02-29 23:59:60+14")
)  # fmt: skip
whole = st.one_of(st.sampled_from((0, 1, 5, -1, 32767, 32768)), st.integers(-(2**31), 2**31 - 1))


def mostly(plain: Any, hostile: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """So that many calls have only one or two hostile arguments, and are accepted for the others."""
    return st.one_of(*[st.just(plain)] * 4, hostile)


class Door:
    """A database with one ordinary command behind the door, and whatever came in."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.bus = SyncCommandBus(url).open()
        self.queue = SyncTroubleshootingQueue(self.bus)
        registry = HandlerRegistry()
        registry.register(DOMAIN, TYPE, lambda command, context: None)
        self.worker = SyncWorker(self.bus, DOMAIN, registry, concurrency=2)
        self.innocent = self.bus.send(DOMAIN, TYPE, delay=3_600).command_id

    def call(self, **arguments: Any) -> Any:
        """The id of what was accepted, else None."""
        try:
            row = self.connection.execute(CALL, arguments).fetchone()
        except psycopg.Error:
            return None  # refused, as PostgreSQL says it
        return row and row[0]

    def empty(self) -> None:
        self.connection.execute("delete from commandbus.outcome")
        for table in ("queue", "scheduled", "held", "unique_key", "audit"):
            self.connection.execute(
                f"delete from commandbus.{table} where seq <> (select seq from commandbus.command"
                f" where command_id = '{self.innocent}')".encode()
            )
        self.connection.execute(
            "delete from commandbus.command where command_id <> %s", (self.innocent,)
        )

    def close(self) -> None:
        self.bus.close()
        self.connection.close()


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door(empty_url())
    yield door
    door.close()


def read_everything(door: Door, domain: str, command_id: Any) -> None:
    """Every read; none may raise, whatever the row is."""
    bus = door.bus
    bus.get_command(command_id, domain=domain)
    bus.get_audit_trail(command_id, domain=domain)
    bus.why(command_id, domain=domain)
    bus.stats(domain)
    for status in (None, *CommandStatus):
        bus.query_commands(domain=domain, status=status)
    assert bus.query_commands(domain=DOMAIN), "the others are hidden"
    door.queue.list_troubleshooting()
    door.queue.group_failures()


@fuzzed(
    domain=mostly(DOMAIN, names),
    type=mostly(TYPE, names),
    data=documents,
    priority=mostly(5, whole),
    delay=mostly(None, intervals),
    due_at=mostly(None, moments),
    expires_at=mostly(None, moments),
    max_attempts=mostly(None, whole),
    unique_key=mostly(None, texts),
    tags=mostly(None, st.lists(texts, max_size=3)),
    headers=mostly(None, documents),
    group_key=mostly(None, texts),
    reply_to=mostly(None, names),
)
def test_what_the_sql_door_accepts_can_be_read_and_operated(door: Door, **arguments: Any) -> None:
    command_id = door.call(**_storable(arguments))
    if command_id is None:
        return
    try:
        assert _live_with(door, arguments["domain"], command_id) in FINAL
    finally:
        door.empty()


@pytest.mark.parametrize("data", NUMBERS)
@pytest.mark.parametrize("place", ["data", "headers"])
def test_hostile_numbers_harm_no_reader(door: Door, data: str, place: str) -> None:
    document = data if place == "data" else f'{{"n": {data}}}'
    command_id = door.call(**_plain() | {place: document})
    if command_id is not None:
        assert _live_with(door, DOMAIN, command_id) in FINAL


@pytest.mark.parametrize("delay", ["100000 years", "-100000 years", "infinity"])
def test_hostile_times_harm_no_reader(door: Door, delay: str) -> None:
    command_id = door.call(**_plain() | {"delay": delay})
    if command_id is not None:
        assert _live_with(door, DOMAIN, command_id) in FINAL


def _live_with(door: Door, domain: str, command_id: Any) -> CommandStatus:
    """Read, run or wait, read again, then end it as an operator would; how it ended."""
    read_everything(door, domain, command_id)
    if domain == DOMAIN:
        for received in door.worker.receive(10):
            door.worker.complete(received)
        read_everything(door, domain, command_id)
    record = door.bus.get_command(command_id, domain=domain)
    assert record is not None
    if record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE:
        door.queue.acting("ann").operator_retry(command_id, domain=domain)
        read_everything(door, domain, command_id)
        door.worker.receive(10)
        door.queue.acting("ann").bulk("cancel", domain=domain, reason="hostile")
    elif record.status is CommandStatus.PENDING:
        door.bus.acting("ann").cancel(command_id, domain=domain, reason="hostile")
    read_everything(door, domain, command_id)
    ended = door.bus.get_command(command_id, domain=domain)
    assert ended is not None
    return ended.status


def _plain() -> dict[str, Any]:
    names = ("delay", "due_at", "expires_at", "max_attempts", "unique_key", "tags", "headers")
    return {"domain": DOMAIN, "type": TYPE, "data": "null", "priority": 5, "group_key": None,
            "reply_to": None} | dict.fromkeys(names)  # fmt: skip


def _storable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Texts without what no text of PostgreSQL has: the driver refuses it."""

    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return [clean(one) for one in value]
        if isinstance(value, str):
            return value.replace("\0", "").encode("utf-8", "ignore").decode()
        return value

    return {name: clean(value) for name, value in arguments.items()}
