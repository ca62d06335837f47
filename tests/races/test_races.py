"""The races that matter, in every order of their statements, on real connections to PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from commandbus import CommandStatus, SendRequest
from commandbus.errors import LeaseLost
from commandbus.operations.batches import close_batches
from commandbus.operations.canceling import open_requests
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url
from tests.races.stepping import orders, race

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(60)]
DOMAIN = "orders"
TWO = list(orders(2))
THREE = list(orders(3))
LEASE = 0.3


@pytest.fixture
def url() -> str:
    return empty_url()


@pytest.fixture
def one(url: str) -> Iterator[SyncCommandBus]:
    with SyncCommandBus(url) as bus:
        yield bus


@pytest.fixture
def other(url: str) -> Iterator[SyncCommandBus]:
    with SyncCommandBus(url) as bus:
        yield bus


def status(bus: SyncCommandBus, command_id: object) -> CommandStatus:
    record = bus.get_command(command_id, domain=DOMAIN)  # type: ignore[arg-type]
    assert record is not None
    return record.status


@pytest.mark.parametrize("order", THREE)
def test_complete_against_expiry_and_rescue(
    one: SyncCommandBus, other: SyncCommandBus, order: str
) -> None:
    sent = one.send(DOMAIN, "ship").command_id
    mine, theirs = SyncWorker(one, DOMAIN, visibility_timeout=LEASE), SyncWorker(other, DOMAIN)
    (received,) = mine.receive(1)
    time.sleep(LEASE - 0.05)  # so that it ends in the middle of the race
    results = race(order, lambda: mine.complete(received), lambda: theirs.receive(1))
    given = results["B"] or eventually(lambda: theirs.receive(1)) if _lost(results["A"]) else []
    if _lost(results["A"]):
        assert len(given) == 1, "refused, so somebody else has it"
        theirs.complete(given[0])
    else:
        assert results["A"] is None
        assert not results["B"], "recorded, so nobody else may have it"
    assert status(one, sent) is CommandStatus.COMPLETED


@pytest.mark.parametrize("order", THREE)
def test_renewal_against_expiry(one: SyncCommandBus, other: SyncCommandBus, order: str) -> None:
    one.send(DOMAIN, "ship")
    mine, theirs = SyncWorker(one, DOMAIN, visibility_timeout=LEASE), SyncWorker(other, DOMAIN)
    (received,) = mine.receive(1)
    time.sleep(LEASE - 0.05)
    lease = received.claimed.lease_id
    results = race(
        order,
        lambda: one.session.run(one.engine.store.renew([lease], 30.0)),
        lambda: theirs.receive(1),
    )
    if results["A"] == []:
        assert not results["B"], "renewed, so nobody else may have it"
        mine.complete(received)
    else:
        assert results["A"] == [lease]
        with pytest.raises(LeaseLost):
            mine.complete(received)


@pytest.mark.parametrize("order", THREE)
def test_cancel_against_claim(one: SyncCommandBus, other: SyncCommandBus, order: str) -> None:
    sent = one.send(DOMAIN, "ship").command_id
    worker = SyncWorker(other, DOMAIN)
    results = race(order, lambda: one.cancel(sent), lambda: worker.receive(1))
    assert not isinstance(results["A"], Exception)
    if results["B"]:
        # Begun, so it is only asked to stop, and may complete.
        worker.complete(results["B"][0])
        assert status(one, sent) is CommandStatus.COMPLETED
    else:
        assert status(one, sent) is CommandStatus.CANCELED
        assert worker.receive(1) == []


@pytest.mark.parametrize("order", THREE)
def test_a_request_to_cancel_against_claim(
    one: SyncCommandBus, other: SyncCommandBus, order: str
) -> None:
    sent, worker = one.send(DOMAIN, "ship").command_id, SyncWorker(other, DOMAIN)
    (received,) = worker.receive(1)
    one.cancel(sent)
    worker.release(received, 0)
    asked = open_requests(one.scope, [DOMAIN])
    results = race(order, lambda: one.session.run(asked), lambda: worker.receive(1))
    given = results["B"]
    assert len(given) == (status(one, sent) is not CommandStatus.CANCELED)
    assert results["A"].keys() <= {taken.claimed.seq for taken in given}


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("order", TWO)
def test_a_unique_key_against_the_end_of_its_holders_transaction(
    one: SyncCommandBus, other: SyncCommandBus, url: str, order: str, ends: str
) -> None:
    with psycopg.connect(url) as connection:
        held = one.within(connection).send(DOMAIN, "ship", unique_key="k").command_id
        results = race(
            order,
            lambda: getattr(connection, ends)(),
            lambda: other.send(DOMAIN, "ship", unique_key="k"),
        )
    result = results["B"]
    assert result.duplicate == (ends == "commit")
    assert (result.command_id == held) == (ends == "commit")
    assert status(one, result.command_id) is CommandStatus.PENDING
    assert one.stats(DOMAIN).ready == 1, "one live command per key"


@pytest.mark.parametrize("order", THREE)
def test_the_last_two_of_a_batch(one: SyncCommandBus, other: SyncCommandBus, order: str) -> None:
    batch = one.create_batch(
        [SendRequest(DOMAIN, "ship"), SendRequest(DOMAIN, "ship")],
        on_complete=SendRequest("done", "batch_done"),
    ).batch_id
    mine, theirs = SyncWorker(one, DOMAIN), SyncWorker(other, DOMAIN)
    (first,), (second,) = mine.receive(1), theirs.receive(1)

    def end(bus: SyncCommandBus, worker: SyncWorker, received: object) -> None:
        worker.complete(received)  # type: ignore[arg-type]
        bus.session.run(close_batches(bus.scope, [batch]))

    results = race(order, lambda: end(one, mine, first), lambda: end(other, theirs, second))
    assert results == {"A": None, "B": None}
    record = one.get_batch(batch)
    assert record is not None
    assert (record.completed, record.total) == (2, 2)
    assert one.stats("done").ready == 1, "completion fires once, after the last"


@pytest.mark.parametrize("order", THREE)
def test_stop_against_claim(one: SyncCommandBus, other: SyncCommandBus, order: str) -> None:
    """Two workers claim, and one of them gives back at once, as a stopping worker does."""
    sent = one.send(DOMAIN, "ship").command_id
    stopping, working = SyncWorker(one, DOMAIN), SyncWorker(other, DOMAIN)

    def claim_and_stop() -> None:
        for received in stopping.receive(1):
            stopping.release(received)

    results = race(order, claim_and_stop, lambda: working.receive(1))
    assert results["A"] is None
    (received,) = results["B"] or eventually(lambda: working.receive(1))
    working.complete(received)
    record = one.get_command(sent, domain=DOMAIN)
    assert record is not None
    assert (record.status, record.attempts) == (CommandStatus.COMPLETED, 1), "given back free"


def _lost(result: object) -> bool:
    return isinstance(result, LeaseLost)
