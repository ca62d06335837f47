"""The SQL function `send` and the Python client give the same verdict on the same command."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus.errors import CommandBusError
from commandbus.sync import SyncCommandBus
from tests.postgres.database import postgres_configuration

pytestmark = pytest.mark.postgres


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


GOOD: dict[str, dict[str, Any]] = {
    "nothing but names": {},
    "an object": {"data": {"a": [1, 2.5, None, True, "ü \U0001f600"]}},
    "the largest number": {"data": 2**64 - 1},
    "the smallest number": {"data": -(2**63)},
    "the largest double": {"data": 1.7976931348623157e308},
    "a tiny double": {"data": 5e-324},
    "a number in a text": {"data": "1e999 and 123456789012345678901234567890"},
    "brackets in a text": {"data": "[" * 100},
    "quotes in a text": {"data": 'a "\\" 1e999 "'},
    "64 levels": {"data": nested(64)},
    "256 KiB": {"data": "x" * (256 * 1024 - 2)},
    "a long name": {"command_type": "a" * 63},
    "a reply queue": {"reply_to": "replies"},
    "a priority": {"priority": -32_768},
    "a delay": {"delay": timedelta(days=36_600)},
    "a due time": {"due_at": datetime(9999, 12, 31, tzinfo=UTC)},
    "a due time long ago": {"due_at": datetime(1, 1, 1, tzinfo=UTC)},
    "an expiry": {"expires_at": datetime(2100, 1, 1, tzinfo=UTC)},
    "attempts": {"max_attempts": 32_767},
    "a unique key": {"unique_key": "ü" * 255},
    "a group": {"group_key": "g" * 255},
    "tags": {"tags": ["a" * 100, "b c", "b c"]},
    "required tags": {"requires": ["gpu", "eu", "gpu"]},
    "headers": {"headers": {"a": "x" * 8_000}},
}

BAD: dict[str, dict[str, Any]] = {
    "a number beyond 64 bits": {"data": 2**70},
    "one below": {"data": -(2**63) - 1},
    "one inside": {"data": {"a": [1, {"b": 2**64}]}},
    "infinity": {"data": math.inf},
    "not a number": {"data": [math.nan]},
    "65 levels": {"data": nested(65)},
    "900 levels": {"data": nested(900)},
    "a NUL": {"data": "a\0b"},
    "a NUL in a key": {"data": {"a\0": 1}},
    "a lone surrogate": {"data": "\ud800"},
    "more than 256 KiB": {"data": "x" * (256 * 1024)},
    "a domain": {"domain": "two words"},
    "no domain": {"domain": ""},
    "a type": {"command_type": "ü"},
    "a long type": {"command_type": "a" * 64},
    "a type with a line break": {"command_type": "a\n"},
    "a reserved type": {"command_type": "commandbus.reply"},
    "a reply queue": {"reply_to": "1"},
    "a high priority": {"priority": -32_769},
    "a low priority": {"priority": 32_768},
    "a negative delay": {"delay": timedelta(seconds=-1)},
    "a delay of more than a century": {"delay": timedelta(days=36_601)},
    "a delay and a due time": {"delay": timedelta(1), "due_at": datetime(2100, 1, 1, tzinfo=UTC)},
    "no attempts": {"max_attempts": 0},
    "many attempts": {"max_attempts": 32_768},
    "an empty key": {"unique_key": ""},
    "a long key": {"unique_key": "k" * 256},
    "an empty group": {"group_key": ""},
    "a long group": {"group_key": "g" * 256},
    "an empty tag": {"tags": ["a", ""]},
    "a long tag": {"tags": ["a" * 101]},
    "a tag that is none": {"tags": ["a", None]},
    "a required tag": {"requires": ["gpu,eu"]},
    "an empty required tag": {"requires": [""]},
    "a required tag that is none": {"requires": [None]},
    "headers that are a list": {"headers": [1]},
    "large headers": {"headers": {"a": "x" * 9_000}},
    "a number in headers": {"headers": {"a": 2**70}},
    "deep headers": {"headers": {"a": nested(64)}},
}

ONLY_SQL = {
    "1e400": "data => '1e400'",
    "1e999": "data => '[{\"a\": -1e999}]'",
    "1e999999": "data => '1e999999'",
    "a delay of 100,000 years": "delay => '100000 years'",
    "an endless delay": "delay => '178000000 years'",
    "due at infinity": "due_at => 'infinity'",
    "due at minus infinity": "due_at => '-infinity'",
    "due in the year 290000": "due_at => '290000-01-01'",
    "due before the year 1": "due_at => '0100-01-01 BC'",
    "expiring at infinity": "expires_at => 'infinity'",
    "expiring in the year 290000": "expires_at => '290000-01-01'",
    "no domain at all": "domain => null",
    "1,500 levels": f"data => '{'[' * 1500}{']' * 1500}'",
}


@pytest.fixture
def url() -> str:
    return postgres_configuration().url


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as opened:
        yield opened


def send_by_sql(connection: psycopg.Connection[Any], case: dict[str, Any]) -> Any:
    values = {"domain": "orders", "command_type": "ship"} | case
    for name in {"data", "headers"} & values.keys():
        values[name] = json.dumps(values[name])
    casts = {"data": "::json", "headers": "::json", "tags": "::text[]", "requires": "::text[]"}
    named = ", ".join(f"{name} => %({name})s{casts.get(name, '')}" for name in values)
    row = connection.execute(f"select commandbus.send({named})".encode(), values).fetchone()
    assert row is not None
    return row[0]


def send_by_python(bus: SyncCommandBus, case: dict[str, Any]) -> Any:
    values = {"domain": "orders", "command_type": "ship"} | case
    return bus.send(**values).command_id


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD.keys())
def test_both_doors_take_it_and_keep_the_same(
    url: str, connection: psycopg.Connection[Any], case: dict[str, Any]
) -> None:
    # A group of its own, so that neither holds the key that the other wants.
    sent = send_by_sql(connection, case)
    with SyncCommandBus(url) as bus:
        domain = "others" if "unique_key" in case else "orders"
        twin = send_by_python(bus, case | {"domain": domain})
        found = [bus.get_command(key, domain=name) for name, key in (("orders", sent), (domain, twin))]
        by_sql, by_python = (record for record in found if record is not None)
        for name in ("data", "tags", "headers", "requires", "priority", "max_attempts", "unique_key"):
            assert getattr(by_sql, name) == getattr(by_python, name), name
        for name in ("group_key", "reply_to", "expires_at", "command_type"):
            assert getattr(by_sql, name) == getattr(by_python, name), name
        if "due_at" in case:
            assert by_sql.due_at == by_python.due_at == case["due_at"]


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_both_doors_refuse_it(
    url: str, connection: psycopg.Connection[Any], case: dict[str, Any]
) -> None:
    with pytest.raises((psycopg.DataError, UnicodeEncodeError)):
        send_by_sql(connection, case)
    with SyncCommandBus(url) as bus:
        with pytest.raises(CommandBusError):
            send_by_python(bus, case)
        assert len(bus.query_commands()) == 0


@pytest.mark.parametrize("arguments", ONLY_SQL.values(), ids=ONLY_SQL.keys())
def test_the_function_refuses_what_no_python_value_says(
    url: str, connection: psycopg.Connection[Any], arguments: str
) -> None:
    domain = "" if "domain" in arguments else "domain => 'orders', "
    with pytest.raises(psycopg.DataError):
        connection.execute(f"select commandbus.send({domain}command_type => 'x', {arguments})".encode())
    with SyncCommandBus(url) as bus:
        assert len(bus.query_commands()) == 0


def test_a_moment_that_no_datetime_can_read_back_is_refused(url: str) -> None:
    from datetime import timezone

    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
    late = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))
    with SyncCommandBus(url) as bus:
        for moment in (early, late):
            with pytest.raises(CommandBusError, match="years 1 to 9999"):
                bus.send("orders", "ship", expires_at=moment)
            with pytest.raises(CommandBusError, match="years 1 to 9999"):
                bus.send("orders", "ship", due_at=moment)


def test_an_error_of_the_function_names_the_value_and_the_cure(
    connection: psycopg.Connection[Any],
) -> None:
    with pytest.raises(psycopg.DataError, match=r"name 'two words' is not valid: use up to 63 letters"):
        send_by_sql(connection, {"domain": "two words"})
    with pytest.raises(psycopg.DataError, match="whole number beyond 64 bits; send it as text"):
        send_by_sql(connection, {"data": 2**70})
    with pytest.raises(psycopg.DataError, match=r"'commandbus\.reply' is reserved"):
        send_by_sql(connection, {"command_type": "commandbus.reply", "command_id": uuid4()})
