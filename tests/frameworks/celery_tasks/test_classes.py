"""Classes of tasks as with Celery: base classes, `run`, class-based tasks, what hooks get."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.integrations.celery import Celery, Task, current_app, current_task, shared_task
from tests.frameworks.celery_tasks.support import Declined, run


class Wrapped(Task[..., Any]):
    """As the task class that the documentation of Flask shows, with its `app.app_context()`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ["in a context", self.run(*args, **kwargs)]


class TestClasses:
    def test_a_base_class_puts_something_around_run(self, app: Celery) -> None:
        @app.task(base=Wrapped)
        def add(x: int, y: int) -> Any:
            return x + y

        sent = add.delay(1, 2)
        run(app)
        assert sent.get(timeout=0) == ["in a context", 3]
        assert (add(1, 2), add.run(1, 2)) == (["in a context", 3], 3)

    def test_the_task_class_of_the_app_is_that_of_tasks_without_a_base(self, app: Celery) -> None:
        @shared_task(name="shop.before")
        def before(x: int) -> Any:
            return x

        @app.task(base=Task)
        def plain(x: int) -> int:
            return x

        app.Task = Wrapped

        @app.task(bind=True)
        def after(self: Task[..., Any], x: int) -> Any:
            return [x, self.request.retries]

        sent = [task.delay(1) for task in (before, plain, after)]
        run(app)
        assert [one.get(timeout=0) for one in sent] == [
            ["in a context", 1],
            1,
            ["in a context", [1, 0]],
        ]

    def test_task_cls_and_set_default_are_those_of_celery(self, app: Celery) -> None:
        other = Celery("other", task_cls=Wrapped, set_as_current=False)
        other.bus = app.bus
        by_path = Celery("third", task_cls=f"{__name__}:Wrapped", set_as_current=False)
        assert by_path.Task.__name__ == "Wrapped"
        app.set_default()
        assert current_app.main == "shop"
        other.set_default()
        assert current_app.main == "other"

        @shared_task(name="shop.later")
        def later() -> Any:
            return 1

        sent = later.delay()
        run(other)
        app.set_default()
        assert sent.get(timeout=0) == ["in a context", 1]

    def test_a_class_with_run_is_a_task(self, app: Celery) -> None:
        class Adder(Task[..., Any]):
            name = "shop.adder"
            max_retries = 1

            def __init__(self) -> None:
                self.offset = 100

            def run(self, x: int, y: int = 1) -> int:
                if self.request.retries == 0:
                    raise self.retry(countdown=0)
                return self.offset + x + y

        adder = app.register_task(Adder())
        sent = adder.delay(1)
        run(app)
        assert (sent.get(timeout=0), app.tasks["shop.adder"]) == (102, adder)

    def test_a_base_class_may_have_a_constructor_and_a_property(self, app: Celery) -> None:
        class Database(Task[..., Any]):
            def __init__(self) -> None:
                self.opened = 0

            @property
            def connection(self) -> int:
                self.opened += 1
                return self.opened

        @app.task(bind=True, base=Database)
        def count(self: Any) -> int:
            return int(self.connection)

        sent = [count.delay(), count.delay()]
        run(app)
        assert sorted(one.get(timeout=0) for one in sent) == [1, 2]

    def test_hooks_get_arguments_as_they_were_given_and_the_traceback(self, app: Celery) -> None:
        seen: list[Any] = []

        class Audited(Task[..., Any]):
            def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
                seen.append((args, kwargs))

            def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
                seen.append((args, kwargs, "Declined: no" in einfo.traceback, str(einfo.exception)))

        @app.task(base=Audited)
        def charge(order: int, amount: int = 1, currency: str = "EUR") -> None:
            if amount > 1:
                raise Declined("no")

        charge.delay(7)
        charge.delay(8, currency="USD", amount=2)
        charge.delay(order=9)
        run(app)
        assert ((7,), {"amount": 1, "currency": "EUR"}) in seen
        assert ((8,), {"amount": 2, "currency": "USD"}, True, "no") in seen
        assert ((), {"order": 9, "amount": 1, "currency": "EUR"}) in seen

    def test_a_hook_that_fails_changes_no_outcome(
        self, app: Celery, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Task[..., Any]):
            def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
                raise KeyError("hook")

            def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
                raise KeyError("hook")

        @app.task(base=Broken)
        def charge(fails: bool) -> str:
            if fails:
                raise Declined("no funds")
            return "paid"

        good, bad = charge.delay(False), charge.delay(True)
        run(app)
        assert good.get(timeout=0) == "paid"
        with pytest.raises(Declined, match="no funds"):
            bad.get(timeout=0)
        assert "on_failure of task" in caplog.text

    def test_the_request_has_the_arguments_and_headers_of_the_call(self, app: Celery) -> None:
        @app.task(bind=True, time_limit=20, soft_time_limit=10)
        def look(self: Any, a: int, b: int = 2, c: int = 3) -> Any:
            request = self.request
            assert list(request.timelimit) == [20, 10]
            return [list(request.args), request.kwargs, request.tenant, request.get("nothing", 0)]

        sent = look.apply_async((1,), {"b": 5}, headers={"tenant": "acme"})
        run(app)
        assert sent.get(timeout=0) == [[1], {"b": 5, "c": 3}, "acme", 0]

    def test_current_task_is_the_one_that_runs(self, app: Celery) -> None:
        @app.task
        def look() -> Any:
            return [current_task.name, current_task.request.retries, bool(current_task)]

        sent = look.delay()
        run(app)
        assert sent.get(timeout=0) == [look.name, 0, True]
        assert not current_task
