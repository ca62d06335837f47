"""Whatever is sent comes out as it went in, bit for bit, or is refused by a typed error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from commandbus import CommandBusError
from commandbus.domain import payload
from commandbus.errors import PayloadError
from commandbus.sync import SyncCommandBus, SyncWorker
from tests.fuzz.fuzzing import fuzzed, json_values, names, same, texts


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def bus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    match request.param:
        case "memory":
            url = "memory://"
        case "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/bus.db?synchronous=off"
        case _:
            from tests.postgres.database import empty_url

            url = empty_url()
    with SyncCommandBus(url) as opened:
        yield opened


@fuzzed(value=json_values)
def test_a_payload_survives_or_is_refused(value: Any) -> None:
    try:
        text = payload.encode(value)
    except PayloadError:
        return
    assert same(payload.decode(text), value)
    assert same(json.loads(text), value), "other programs read the same"


@fuzzed(value=json_values, header=texts, tag=texts, key=texts)
def test_a_store_gives_back_what_it_took(
    bus: SyncCommandBus, value: Any, header: str, tag: str, key: str
) -> None:
    options: dict[str, Any] = {"headers": {header: header}, "tags": [tag], "unique_key": key}
    try:
        sent = bus.send("fuzz", "note", value, **options)
    except CommandBusError:
        return
    if sent.duplicate:
        return
    record = bus.get_command(sent.command_id)
    assert record is not None
    assert same(record.data, value)
    assert (record.headers, record.tags, record.unique_key) == ({header: header}, (tag,), key)
    worker = SyncWorker(bus, "fuzz")
    (received,) = worker.receive(1)
    assert same(received.command.data, value)
    worker.complete(received)


@fuzzed(domain=names, command_type=names, worker=texts)
def test_a_strange_name_is_refused_or_kept(
    bus: SyncCommandBus, domain: str, command_type: str, worker: str
) -> None:
    try:
        sent = bus.send(domain, command_type)
    except CommandBusError:
        return
    record = bus.get_command(sent.command_id, domain=domain)
    assert record is not None
    assert (record.domain, record.command_type) == (domain, command_type)
    assert bus.stats(domain).ready >= 1
    bus.purge(domain)
    assert bus.get_command(sent.command_id, domain=domain) is None
