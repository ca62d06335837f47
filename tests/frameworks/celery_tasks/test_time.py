"""Countdowns, expiry, time limits and periodic tasks as with Celery."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

import pytest
from cronsim import CronSim

from commandbus import HandlerRegistry, RetryPolicy
from commandbus.integrations.celery import (
    Celery,
    Task,
)
from commandbus.integrations.celery.exceptions import (
    SoftTimeLimitExceeded,
)
from commandbus.integrations.celery.schedules import crontab
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing import FakeClock, eventually
from tests.frameworks.celery_tasks.support import run


class TestTime:
    def test_beat_entries_become_schedules(self, app: Celery, command_clock: FakeClock) -> None:
        beats: list[str] = []

        @app.task(name="shop.beat")
        def beat(word: str) -> None:
            beats.append(word)

        @app.on_after_configure.connect
        def periodic(sender: Celery, **_: Any) -> None:
            sender.add_periodic_task(30.0, beat.s("thirty"), name="every thirty")

        app.conf.timezone = "Europe/Berlin"
        app.conf.beat_schedule = {
            "nightly": {
                "task": "shop.beat",
                "schedule": crontab(hour=2, minute=30),
                "args": ("night",),
                "options": {"expires": 60, "priority": 9},
            },
        }
        run(app)
        found = {one.schedule.name: one.schedule for one in app.bus.list_schedules()}
        assert found["nightly"].cron == "30 2 * * *"
        assert (found["nightly"].priority, found["nightly"].data) == (-4, {"word": "night"})
        assert (found["nightly"].timezone, found["every-thirty"].every) == ("Europe/Berlin", 30)
        command_clock.advance(31)
        run(app)
        assert "thirty" in beats

    def test_a_soft_time_limit_is_an_exception_in_the_task(self, app: Celery) -> None:
        @app.task(soft_time_limit=0.05)
        def render() -> str:
            try:
                while True:
                    time.sleep(0.001)
            except SoftTimeLimitExceeded:
                return "partial"

        @app.task(soft_time_limit=5)
        def quick() -> str:
            return "whole"

        sent, other = render.delay(), quick.delay()
        run(app)
        assert (sent.get(timeout=0), other.get(timeout=0)) == ("partial", "whole")

    def test_a_time_limit_is_a_failure_and_not_retried(self) -> None:
        with SyncCommandBus("memory://") as bus:
            app = Celery("shop")
            app.bus = bus
            release = threading.Event()

            @app.task(time_limit=0.1)
            def hang() -> None:
                release.wait(20)

            sent = hang.delay()
            worker = SyncWorker(bus, "celery", app.registry)
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            eventually(lambda: sent.ready())
            release.set()
            worker.stop()
            thread.join()
            record = bus.get_command(sent.id)
            assert record is not None
            assert (sent.state, record.attempts, record.error_code) == (
                "FAILURE",
                1,
                "TimeLimitExceeded",
            )

    def test_a_task_without_a_time_limit_is_not_given_up(self) -> None:
        with SyncCommandBus("memory://") as bus:
            app = Celery("shop")
            app.bus = bus
            release = threading.Event()

            @app.task
            def render() -> str:
                release.wait(20)
                return "whole"

            orders = HandlerRegistry("orders")

            @orders.command(retry=RetryPolicy(max_attempts=1))
            def plain() -> None:
                release.wait(20)

            sent = render.delay()
            with SyncWorker(bus, HandlerRegistry.union([app.registry, orders]), thread_timeout=0.1):
                eventually(lambda: sent.state == "STARTED")
                given_up = bus.wait(bus.send(plain()), timeout=20)  # began later, and is over
                assert (given_up.error_code, sent.state) == ("THREAD_TIMEOUT", "STARTED")
                release.set()
                assert sent.get(timeout=20) == "whole"

    @pytest.mark.parametrize(
        "fields",
        [
            {"minute": 0, "hour": "*/3,8-17"},
            {"minute": 30, "hour": 7, "day_of_week": "sunday"},
            {"minute": "*/10", "hour": "3,17", "day_of_week": "Thursday,fri"},
            {"minute": 0, "hour": 0, "day_of_month": "2-30/3"},
            {"minute": {0, 30}, "hour": [6], "month_of_year": "january-mar"},
            {"minute": 0, "hour": 5, "day_of_week": "*/2"},
        ],
        ids=str,
    )
    def test_a_crontab_has_the_occurrences_of_celery(self, fields: dict[str, Any]) -> None:
        theirs = pytest.importorskip("celery.schedules").crontab(**fields)
        first, days = datetime(2026, 1, 1), 60
        expected = []
        for number in range(1, days * 24 * 60):
            moment = first + timedelta(minutes=number)
            if (
                moment.minute in theirs.minute
                and moment.hour in theirs.hour
                and moment.day in theirs.day_of_month
                and moment.month in theirs.month_of_year
                and moment.isoweekday() % 7 in theirs.day_of_week
            ):
                expected.append(moment)
        end = first + timedelta(days=days)
        found = takewhile(lambda one: one < end, CronSim(crontab(**fields).cron, first))
        assert list(found) == expected
        assert expected

    def test_a_rate_limit_is_one_of_the_fleet(self, app: Celery) -> None:
        @app.task(rate_limit="10/m")
        def slow() -> None: ...

        run(app)
        (limit,) = app.bus.list_limits("celery")
        assert limit.rate == pytest.approx(1 / 6)

    def test_progress_is_a_state(self, app: Celery) -> None:
        seen = []

        @app.task(bind=True)
        def load(self: Task[..., Any]) -> None:
            self.update_state(state="PROGRESS", meta={"current": 1, "total": 4})
            seen.append(
                (load.AsyncResult(self.request.id).state, load.AsyncResult(self.request.id).info)
            )

        load.delay()
        run(app)
        assert seen == [("PROGRESS", {"current": 1, "total": 4})]
