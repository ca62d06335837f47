"""Calling tasks as with Celery: arguments, options, results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from commandbus.errors import DuplicateCommandError, PayloadError
from commandbus.integrations.celery import (
    Celery,
    NotPortable,
    shared_task,
)
from commandbus.integrations.celery.exceptions import (
    TaskRevokedError,
)
from commandbus.testing import FakeClock, drain
from tests.frameworks.celery_tasks.support import run


class TestCalls:
    def test_positional_arguments_are_fields_of_the_payload_by_signature(self, app: Celery) -> None:
        @app.task
        def charge(order: int, amount, currency="EUR"):  # type: ignore[no-untyped-def]
            return f"{order} {amount} {currency}"

        sent = charge.delay(7, 42)

        record = app.bus.get_command(sent.id)
        assert record is not None
        assert (record.domain, record.command_type) == ("celery", f"{__name__}.charge")
        assert record.data == {"order": 7, "amount": 42, "currency": "EUR"}
        run(app)
        assert sent.get(timeout=0) == "7 42 EUR"
        assert charge(1, 2, "USD") == "1 2 USD"

    def test_wrong_arguments_are_refused_at_the_call(self, app: Celery) -> None:
        @app.task
        def charge(order: int) -> None: ...

        with pytest.raises(TypeError, match="missing a required argument: 'order'"):
            charge.delay()  # type: ignore[call-arg]
        with pytest.raises(PayloadError, match="Expected int, got str at"):
            charge.delay("seven")  # type: ignore[arg-type]

    def test_the_options_of_a_call_are_those_of_a_send(
        self, app: Celery, command_clock: FakeClock
    ) -> None:
        @app.task
        def note(word: str) -> str:
            return word

        app.conf.task_queues = ["mail"]
        task_id = str(uuid4())
        late = note.apply_async(["a"], countdown=60, priority=9, queue="mail", task_id=task_id)
        record = app.bus.get_command(task_id)

        assert record is not None
        assert (late.id, record.domain, record.priority) == (task_id, "mail", -4)
        assert record.due_at == command_clock.now + timedelta(seconds=60)
        run(app)
        assert late.state == "PENDING"
        command_clock.advance(60)
        run(app)
        assert late.get(timeout=0) == "a"

    def test_a_task_id_is_sent_once(self, app: Celery) -> None:
        @app.task
        def note() -> None: ...

        task_id = str(uuid4())
        note.apply_async(task_id=task_id)
        with pytest.raises(DuplicateCommandError, match=task_id):
            note.apply_async(task_id=task_id)

    def test_an_eta_without_a_zone_is_in_that_of_the_app(self, app: Celery) -> None:
        @app.task
        def note() -> None: ...

        app.conf.timezone = "Europe/Berlin"
        record = app.bus.get_command(note.apply_async(eta=datetime(2031, 1, 15, 12)).id)

        assert record is not None
        assert record.due_at == datetime(2031, 1, 15, 11, tzinfo=UTC)

    def test_an_expired_task_is_revoked(self, app: Celery, command_clock: FakeClock) -> None:
        @app.task
        def note() -> None: ...

        sent = note.apply_async(expires=60)
        command_clock.advance(61)
        run(app)

        assert sent.state == "REVOKED"
        with pytest.raises(TaskRevokedError):
            sent.get(timeout=0)

    def test_a_revoked_task_does_not_run(self, app: Celery) -> None:
        ran = []

        @app.task
        def note() -> None:
            ran.append(1)

        sent = note.delay()
        app.control.revoke(sent.id)
        run(app)

        assert (sent.state, ran) == ("REVOKED", [])

    def test_a_queue_that_no_worker_would_serve_is_refused(self, app: Celery) -> None:
        @app.task
        def note() -> None: ...

        with pytest.raises(NotPortable, match=r"the queue 'mail' .* app\.conf\.task_queues"):
            note.apply_async(queue="mail")

    def test_a_shared_task_belongs_to_the_app_that_was_made_last(self, app: Celery) -> None:
        @shared_task(name="shop.shared")
        def double(number: int) -> int:
            return 2 * number

        sent = double.delay(21)
        run(app)
        assert sent.get(timeout=0) == 42

    def test_a_task_is_a_typed_command(self, app: Celery) -> None:
        @app.task
        def double(number: int) -> int:
            return 2 * number

        app.bus.send(double.command(number=4))
        (record,) = drain(app.bus, app.registry)
        assert record.result == 8

    def test_a_payload_class_is_the_whole_payload_also_in_a_chain(self, app: Celery) -> None:
        @dataclass
        class Order:
            number: int

        def load(number: int) -> Order:
            return Order(number)

        def ship(order: Order) -> int:
            return order.number

        load.__annotations__, ship.__annotations__ = {"return": Order}, {"order": Order, "return": int}
        first, second = app.task(load), app.task(ship)
        sent = (first.s(7) | second.s()).apply_async()
        run(app)
        assert sent.get(timeout=0) == 7
