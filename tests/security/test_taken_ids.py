"""A program that may only send takes ids of commands that the bus is going to send itself. Whatever
follows from names and ids that such a program knows is tried; the ids are made from more than that."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4, uuid5

from commandbus import Schedule, SendRequest
from commandbus.operations.batches import close_batches
from commandbus.operations.schedules import tick
from commandbus.testing.harness import DOMAIN as ORDERS
from commandbus.testing.harness import Harness
from commandbus.testing.sagas import DOMAIN, BookTrip, Sagas

NAMESPACES = [
    UUID(int=0),
    UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    UUID("6f1f7c52-6a43-5d0e-9a53-0d1a3c7f5b21"),  # schedules had this one
    UUID("0a6f0ac9-2f1d-5b43-8d0b-5a3e5c1f7d10"),  # and completions of batches this one
]


def take(bus: Harness, domain: str, ids: list[UUID]) -> None:
    for command_id in ids:
        bus.call(bus.bus.send, domain, "squat", delay=86_400, command_id=command_id)


def test_a_step_is_sent_though_the_id_of_its_process_is_known(bus: Harness) -> None:
    sagas = Sagas(bus, BookTrip)
    process_id = uuid4()
    take(bus, DOMAIN, [uuid5(process_id, str(number)) for number in range(6)])
    assert sagas.start(process_id=process_id) == process_id
    for command_type in ("book_hotel", "book_car", "pay"):
        sagas.done(command_type)
    assert sagas.status(process_id) == "COMPLETED"


def test_an_occurrence_of_a_schedule_is_sent_though_its_name_and_time_are_known(bus: Harness) -> None:
    schedule = Schedule(name="nightly", domain=ORDERS, command_type="ship", every=3600)
    record = bus.call(bus.bus.put_schedule, schedule)
    # Tests on a server make what is stored look older instead of moving its clock.
    times = [record.next_run, record.next_run - timedelta(hours=1)]
    known = [f"{ORDERS}|nightly|{time.isoformat()}" for time in times]
    take(bus, ORDERS, [uuid5(namespace, one) for namespace in NAMESPACES for one in known])
    bus.advance(3600)
    assert bus.run(tick(bus.bus.scope)).sent == 1
    assert len(bus.query(domain=ORDERS, command_type="ship")) == 1


def test_a_batch_completes_though_its_id_is_known(bus: Harness) -> None:
    batch_id = uuid4()
    take(bus, ORDERS, [uuid5(namespace, str(batch_id)) for namespace in (*NAMESPACES, batch_id)])
    told = SendRequest(ORDERS, "told")
    bus.call(bus.bus.create_batch, [SendRequest(ORDERS, "ship")], batch_id=batch_id, on_complete=told)
    worker = bus.worker()
    taken = bus.take(worker)
    assert taken.command.command_type == "ship"
    bus.call(worker.complete, taken)
    assert bus.run(close_batches(bus.bus.scope, [batch_id])) == 1
    assert bus.take(worker).command.command_type == "told"
