"""Retries as with Celery: policies, countdowns, limits of attempts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from commandbus import RetryAfter
from commandbus.integrations.celery import (
    Celery,
    NotPortable,
    Task,
)
from commandbus.integrations.celery.exceptions import (
    MaxRetriesExceededError,
)
from commandbus.testing import FakeClock
from tests.frameworks.celery_tasks.support import run


class TestRetries:
    def test_retry_runs_the_task_again_after_its_countdown(
        self, app: Celery, command_clock: FakeClock
    ) -> None:
        @app.task(bind=True)
        def fetch(self: Task[..., Any]) -> int:
            if self.request.retries < 2:
                raise self.retry(countdown=30, exc=ConnectionError("busy"))
            return self.request.retries

        sent = fetch.delay()
        run(app)
        assert sent.state == "RETRY"
        command_clock.advance(29)
        run(app)
        assert sent.state == "RETRY"
        for seconds in (1, 30):
            command_clock.advance(seconds)
            run(app)
        assert (sent.state, sent.get(timeout=0)) == ("SUCCESS", 2)

    def test_used_up_retries_end_with_the_exception(self, app: Celery) -> None:
        @app.task(bind=True, max_retries=1)
        def fetch(self: Task[..., Any], exc: bool) -> None:
            raise self.retry(countdown=0, exc=KeyError("gone") if exc else None)

        with_cause, without = fetch.delay(True), fetch.delay(False)
        run(app)

        with pytest.raises(KeyError):
            with_cause.get(timeout=0)
        with pytest.raises(MaxRetriesExceededError):
            without.get(timeout=0)

    def test_a_bound_of_the_call_replaces_that_of_the_task(self, app: Celery) -> None:
        runs = []

        @app.task(bind=True, max_retries=1)
        def fetch(self: Task[..., Any]) -> None:
            runs.append(self.request.retries)
            raise self.retry(countdown=0, max_retries=4, exc=ValueError("no"))

        fetch.delay()
        run(app)
        assert runs == [0, 1, 2, 3, 4]

    def test_autoretry_backs_off(self, app: Celery, command_clock: FakeClock) -> None:
        ran = []

        @app.task(autoretry_for=(OSError,), retry_backoff=10, retry_backoff_max=15, retry_jitter=False)
        def upload() -> None:
            ran.append(command_clock.now)
            raise ConnectionError("away")

        sent = upload.delay()
        for _ in range(80):
            run(app)
            command_clock.advance(1)

        waits = [(later - earlier).total_seconds() for earlier, later in pairwise(ran)]
        assert waits == [10, 15, 15]
        assert sent.failed()

    def test_what_is_not_named_is_not_retried(self, app: Celery) -> None:
        ran = []

        @app.task(autoretry_for=(OSError,), dont_autoretry_for=(FileNotFoundError,))
        def upload(missing: bool) -> None:
            ran.append(missing)
            raise FileNotFoundError("a.csv") if missing else ValueError("no")

        upload.delay(True)
        upload.delay(False)
        run(app)
        assert ran == [True, False]

    def test_exceptions_of_the_bus_keep_their_meaning(
        self, app: Celery, command_clock: FakeClock
    ) -> None:
        runs = []

        @app.task
        def fetch() -> None:
            runs.append(1)
            if len(runs) == 1:
                raise RetryAfter(7)

        sent = fetch.delay()
        run(app)
        command_clock.advance(7)
        run(app)
        assert sent.successful()

    def test_a_retry_with_another_payload_is_refused(self, app: Celery) -> None:
        @app.task(bind=True)
        def fetch(self: Task[..., Any], page: int) -> None:
            self.retry(args=[page + 1])

        sent = fetch.delay(1)
        run(app)
        with pytest.raises(NotPortable, match="send another task"):
            sent.get(timeout=0)

    def test_apply_runs_the_task_and_its_retries_here(self, app: Celery) -> None:
        @app.task(bind=True, autoretry_for=(OSError,), max_retries=2)
        def fetch(self: Task[..., Any], until: int) -> int:
            if self.request.retries < until:
                raise OSError("no")
            return self.request.retries

        assert fetch.apply((1,)).get() == 1
        failed = fetch.apply((9,))
        assert failed.failed()
        with pytest.raises(OSError, match="no"):
            failed.get()
