"""Tasks that are called after the failure of another, as with Celery."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.integrations.celery import Celery, NotPortable, chain, chord, group
from commandbus.sync import SyncTroubleshootingQueue
from tests.frameworks.celery_tasks.support import Declined, run


class Shop:
    """Tasks that fail, and tasks that are called then."""

    def __init__(self, app: Celery) -> None:
        self.seen: list[Any] = []

        @app.task(name="shop.charge")
        def charge(order: int) -> int:
            if order == 13:
                raise Declined("card 13")
            return order

        @app.task(name="shop.notify")
        def notify(request, exc, traceback, note=None):  # type: ignore[no-untyped-def]
            self.seen.append((request.id, type(exc), "Declined: card 13" in traceback, note))

        @app.task(name="shop.notify_id")
        def notify_id(task_id: str) -> None:
            self.seen.append(task_id)

        self.charge, self.errback, self.id_errback = charge, notify, notify_id


@pytest.fixture
def shop(app: Celery) -> Shop:
    return Shop(app)


class TestErrbacks:
    def test_a_failure_calls_the_errback_with_request_exception_and_traceback(
        self, app: Celery, shop: Shop
    ) -> None:
        good = shop.charge.apply_async((1,), link_error=shop.errback.s())
        bad = shop.charge.apply_async((13,), link_error=[shop.errback.s(note="n")])
        run(app)
        assert good.get(timeout=0) == 1
        assert bad.state == "FAILURE"
        assert shop.seen == [(bad.id, Declined, True, "n")]

    def test_an_errback_of_one_argument_is_sent_with_the_id(self, app: Celery, shop: Shop) -> None:
        called = shop.charge.s(13)
        called.link_error(shop.id_errback.s())
        bad = called.delay()
        run(app)
        assert shop.seen == [bad.id]
        SyncTroubleshootingQueue(app.bus).operator_retry(bad.id)
        run(app)
        assert shop.seen == [bad.id, bad.id]

    @pytest.mark.parametrize("order", [13, 1], ids=["first fails", "second fails"])
    def test_the_errback_of_a_chain_is_that_of_each_of_its_tasks(
        self, app: Celery, shop: Shop, order: int
    ) -> None:
        chain(shop.charge.s(order), shop.charge.si(13)).on_error(shop.errback.s()).delay()
        run(app)
        assert [kind for _, kind, _, _ in shop.seen] == [Declined]

    def test_groups_and_chords_have_errbacks(self, app: Celery, shop: Shop) -> None:
        @app.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        group(shop.charge.s(1), shop.charge.s(13)).apply_async(link_error=shop.errback.s())
        whole = chord([shop.charge.s(1), shop.charge.s(13)], total.s())
        whole.link_error(shop.errback.s(note="chord"))
        whole.delay()
        run(app)
        assert [note for *_, note in shop.seen] == [None, "chord"]

    def test_a_retry_calls_none(self, app: Celery, shop: Shop) -> None:
        @app.task(autoretry_for=(Declined,), retry_kwargs={"max_retries": 2, "countdown": 0})
        def pay() -> None:
            raise Declined("card 13")

        pay.apply_async(link_error=shop.errback.s())
        run(app)
        assert len(shop.seen) == 1

    def test_an_errback_is_a_signature(self, app: Celery, shop: Shop) -> None:
        with pytest.raises(NotPortable, match=r"Give a signature of a task"):
            shop.charge.apply_async((1,), link_error="shop.notify")
