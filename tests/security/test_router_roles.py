"""A router of processes with the database role that the documentation names for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from commandbus import BusinessRuleException, PermanentCommandError, SendRequest
from commandbus.engines.postgres.roles import ROLES, role_named, roles_sql
from commandbus.engines.postgres.schema import upgrade
from commandbus.processes import step
from commandbus.sync import SyncCommandBus
from commandbus.testing import Harness
from commandbus.testing.postgres import create_database
from commandbus.testing.sagas import BookTrip, Leg, Parallel, Sagas, Timed, Tour, Trip
from commandbus.testing.waiting import eventually
from tests.postgres.database import postgres_configuration, server

pytestmark = pytest.mark.postgres

BROKEN = PermanentCommandError("BROKEN", "no")


@pytest.fixture
def owner() -> str:
    url = create_database(server(os.getpid()))
    upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles_sql("commandbus").encode())
        for role in ROLES:
            connection.execute(f"drop role if exists test_{role}".encode())
            name = role_named(role, "commandbus")
            connection.execute(f"create role test_{role} login in role {name}".encode())
    return url


@pytest.fixture(params=["worker", "admin"])
def bus(owner: str, request: pytest.FixtureRequest) -> Iterator[Harness]:
    """Workers, starters and the router: everything but the operator."""
    url = owner.replace("postgres@", f"test_{request.param}@", 1)
    harness = replace(postgres_configuration(), url=url).open("threads")
    yield harness
    harness.close()


@pytest.fixture
def desk(owner: str) -> Iterator[SyncCommandBus]:
    with SyncCommandBus(owner.replace("postgres@", "test_admin@", 1)) as bus:
        yield bus


class Hasty(Timed):
    timeout = 60

    @step(timeout=0.2)
    def hotel(self, state: Trip) -> SendRequest:
        return SendRequest("travel", "hotel")

    @hotel.compensation
    def undo_hotel(self, state: Trip) -> SendRequest:
        return SendRequest("travel", "undo_hotel")


def test_a_saga_completes_and_another_one_compensates(bus: Harness) -> None:
    sagas = Sagas(bus, BookTrip)
    good, bad = sagas.start(), sagas.start()
    for command_type in ("book_hotel", "book_hotel", "book_car"):
        sagas.done(command_type)
    sagas.done("book_car", BusinessRuleException("NO_CAR", "none left"))
    for command_type in ("pay", "cancel_hotel"):
        sagas.done(command_type)
    assert (sagas.status(good), sagas.status(bad)) == ("COMPLETED", "COMPENSATED")


def test_waiting_and_parked_steps_are_called_off_when_an_operator_cancels(
    bus: Harness, desk: SyncCommandBus
) -> None:
    sagas = Sagas(bus, Parallel)
    process_id = sagas.start()
    sagas.done("begin")
    hotel = sagas.done("hotel", BROKEN)
    desk.acting("ann").cancel_process(process_id, "no trip")
    sagas.route()
    records = {record.command_type: record for record in bus.query(domain="travel")}
    assert {records[name].status for name in ("hotel", "car", "guide")} == {"CANCELED"}
    assert records["hotel"].command_id == hotel
    assert bus.kinds(hotel)[-2:] == ["MOVED_TO_TSQ", "CANCELED"]
    assert bus.stats("travel").parked == 0
    assert desk.verify_audit().problems == []
    while waiting := sagas.waiting():
        sagas.done(waiting[0])
    assert sagas.status(process_id) == "CANCELED"


def test_a_step_that_takes_too_long_is_called_off(bus: Harness) -> None:
    sagas = Sagas(bus, Hasty)
    process_id = sagas.start()
    assert eventually(lambda: sagas.pass_time(0) == 1)
    (hotel,) = bus.query(command_type="hotel")
    assert hotel.status == "CANCELED"
    sagas.route()
    sagas.done("undo_hotel")
    assert sagas.status(process_id) == "COMPENSATED"


def test_a_process_within_a_process_is_called_off(bus: Harness, desk: SyncCommandBus) -> None:
    sagas = Sagas(bus, Tour, Leg)
    process_id = sagas.start()
    sagas.done("plan")
    desk.acting("ann").cancel_process(process_id, "no trip")
    sagas.route()
    while waiting := sagas.waiting():
        sagas.done(waiting[0])
    assert sagas.status(process_id) == "CANCELED"


@pytest.mark.parametrize("role", ["sender", "viewer"])
@pytest.mark.parametrize("call", ["lock_outcome(1)", "revoke_parked(1, 'x')"])
def test_no_other_role_calls_the_functions_of_the_router(owner: str, role: str, call: str) -> None:
    url = owner.replace("postgres@", f"test_{role}@", 1)
    with (
        psycopg.connect(url, autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(f"select commandbus.{call}".encode())


def test_what_has_ended_cannot_be_revoked(owner: str) -> None:
    url = owner.replace("postgres@", "test_worker@", 1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into commandbus.outcome (seq, status, attempts, crashes, finished_at)"
            " values (1, 'COMPLETED', 1, 0, 1)"
        )
        row = connection.execute("select commandbus.revoke_parked(1, 'x')").fetchone()
        assert row == (False,)
        assert connection.execute("select status from commandbus.outcome").fetchone() == ("COMPLETED",)
