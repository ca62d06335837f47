"""How tasks end as with Celery: states, results, signals, revokes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from commandbus.integrations.celery import (
    AsyncResult,
    Celery,
    Task,
    chain,
)
from commandbus.integrations.celery.exceptions import (
    Ignore,
    Reject,
    TaskFailed,
)
from commandbus.sync import SyncTroubleshootingQueue
from tests.frameworks.celery_tasks.support import Declined, Difficult, run


class TestOutcomes:
    def test_a_failed_task_is_parked_and_an_operator_may_retry_it(self, app: Celery) -> None:
        healthy: list[bool] = []

        @app.task
        def charge() -> str:
            if not healthy:
                raise Declined("no funds")
            return "paid"

        sent = charge.delay()
        run(app)
        assert sent.state == "FAILURE"
        with pytest.raises(Declined, match="no funds"):
            sent.get(timeout=0)
        assert sent.traceback
        assert "charge" in sent.traceback

        healthy.append(True)
        SyncTroubleshootingQueue(app.bus).operator_retry(sent.id)
        run(app)
        assert sent.get(timeout=0) == "paid"

    def test_what_a_task_throws_is_not_for_an_operator(self, app: Celery) -> None:
        @app.task(throws=(Declined,))
        def charge() -> None:
            raise Declined("no funds")

        sent = charge.delay()
        run(app)
        record = app.bus.get_command(sent.id)
        assert record is not None
        assert (record.status, sent.state) == ("FAILED", "FAILURE")

    def test_an_exception_that_cannot_be_made_again_is_a_task_failed(self, app: Celery) -> None:
        @app.task
        def charge() -> None:
            raise Difficult(7, "no")

        sent = charge.delay()
        run(app)
        with pytest.raises(TaskFailed, match="Difficult: 7: no"):
            sent.get(timeout=0)

    def test_ignore_reject_and_ignored_results(self, app: Celery) -> None:
        @app.task
        def ignoring() -> None:
            raise Ignore

        @app.task
        def rejecting() -> None:
            raise Reject("broken")

        @app.task(ignore_result=True)
        def silent() -> str:
            return "not kept"

        sent = [task.delay() for task in (ignoring, rejecting, silent)]
        run(app)
        assert [one.state for one in sent] == ["SUCCESS", "FAILURE", "SUCCESS"]
        assert sent[2].get(timeout=0) is None

    def test_a_task_that_sets_its_state_to_failure_and_is_ignored_has_failed(self, app: Celery) -> None:
        @app.task(bind=True)
        def check(self: Task[..., Any]) -> None:
            self.update_state(state="FAILURE", meta={"why": "no stock"})
            raise Ignore

        sent = check.delay()
        run(app)
        record = app.bus.get_command(sent.id)
        assert record is not None
        assert (sent.state, record.status) == ("FAILURE", "FAILED")

    def test_a_result_is_written_as_its_id(self, app: Celery) -> None:
        @app.task
        def charge() -> None: ...

        sent = charge.delay()
        assert str(sent) == f"{sent}" == sent.id

    def test_hooks_of_a_base_class_are_called(self, app: Celery) -> None:
        called: list[str] = []

        class Audited(Task[..., Any]):
            def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
                called.append(f"before {args}")

            def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
                called.append(f"success {retval}")

            def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
                called.append(f"retry {exc}")

            def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
                called.append(f"failure {exc}")

            def after_return(
                self, status: Any, retval: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any
            ) -> None:
                called.append(f"after {status}")

        @app.task(bind=True, base=Audited, max_retries=1)
        def charge(self: Task[..., Any], fails: bool) -> str:
            if fails:
                raise self.retry(exc=ValueError("no"), countdown=0)
            return "paid"

        charge.delay(False)
        run(app)
        assert called == ["before (False,)", "success paid", "after SUCCESS"]
        called.clear()
        charge.delay(True)
        run(app)
        before = "before (True,)"
        assert called == [before, "retry no", before, "failure no", "after FAILURE"]

    def test_a_base_class_may_come_from_the_app(self, app: Celery) -> None:
        called = []

        class Audited(app.Task):  # type: ignore[name-defined,misc]
            def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
                called.append(retval)

        @app.task(base=Audited)
        def charge() -> str:
            return "paid"

        @app.task(base=app.Task)
        def refund() -> str:
            return "paid back"

        sent = [charge.delay(), refund.delay()]
        run(app)
        assert [one.get(timeout=0) for one in sent] == ["paid", "paid back"]
        assert called == ["paid"]

    def test_nothing_follows_a_task_that_is_ignored(self, app: Celery) -> None:
        ran = []

        @app.task
        def skip() -> None:
            raise Ignore

        @app.task
        def after(result: None) -> None:
            ran.append(result)

        chain(skip.s(), after.s()).apply_async()
        run(app)
        assert ran == []

    def test_middleware_and_lifespans_are_around_tasks_of_all_queues(self, app: Celery) -> None:
        seen = []

        @app.middleware
        def noted(command: Any, context: Any) -> Iterator[None]:
            seen.append(command.domain)
            yield

        @app.lifespan
        def opened() -> Iterator[None]:
            seen.append("open")
            yield
            seen.append("closed")

        @app.task
        def here() -> None: ...

        @app.task(queue="mail")
        def there() -> None: ...

        here.delay()
        there.delay()
        run(app)
        assert sorted(seen[1:-1]) == ["celery", "mail"]
        assert (seen[0], seen[-1]) == ("open", "closed")

    def test_the_state_of_an_unknown_task_is_pending(self, app: Celery) -> None:
        assert AsyncResult(str(uuid4()), app).state == "PENDING"

    def test_a_result_is_not_waited_for_within_a_task(self, app: Celery) -> None:
        @app.task
        def inner() -> None: ...

        @app.task
        def outer() -> None:
            inner.delay().get()

        sent = outer.delay()
        run(app)
        with pytest.raises(RuntimeError, match="within a task"):
            sent.get(timeout=0)
