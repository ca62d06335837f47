"""What an application that comes from Celery finds: its names, in tests with `drain` and a clock."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from commandbus import CommandBus, RetryAfter, Worker
from commandbus.errors import ConfigurationError, DuplicateCommandError, PayloadError
from commandbus.interfaces.integrations import celery
from commandbus.interfaces.integrations.celery import (
    AsyncResult,
    Celery,
    NotPortable,
    Task,
    chain,
    chord,
    group,
    shared_task,
)
from commandbus.interfaces.integrations.celery.exceptions import (
    ChordError,
    Ignore,
    MaxRetriesExceededError,
    Reject,
    SoftTimeLimitExceeded,
    TaskFailed,
    TaskRevokedError,
)
from commandbus.interfaces.integrations.celery.schedules import crontab
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from commandbus.testing import FakeClock, drain, eventually


@pytest.fixture
def app(sync_command_bus: SyncCommandBus) -> Iterator[Celery]:
    """An app on a store in memory."""
    made = Celery("shop")
    made.bus = sync_command_bus
    yield made
    made.bus = None


def run(app: Celery) -> None:
    drain(app.bus, app.registry)


@contextmanager
def working(app: Celery, is_async: bool) -> Iterator[None]:
    """A worker of either runtime, in a thread of its own."""
    if not is_async:
        with SyncWorker(app.bus, app.registry):
            yield
        return
    over = threading.Event()

    async def work() -> None:
        async with CommandBus(app.bus.url) as bus, Worker(bus, app.registry):
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(work(),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Declined(Exception):
    pass


class Difficult(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


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

    def test_hooks_of_a_base_class_are_called(self, app: Celery) -> None:
        called: list[str] = []

        class Audited(Task[..., Any]):
            def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
                called.append(f"before {kwargs}")

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
        assert called == ["before {'fails': False}", "success paid", "after SUCCESS"]
        called.clear()
        charge.delay(True)
        run(app)
        before = "before {'fails': True}"
        assert called == [before, "retry no", before, "failure no", "after FAILURE"]

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


class TestCanvas:
    def test_a_chain_passes_results_on(self, app: Celery) -> None:
        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        sent = (add.s(1, 1) | add.s(10) | add.si(5, 5) | add.s(1)).apply_async()
        run(app)
        assert sent.get(timeout=0) == 11
        assert sent.parent.get(timeout=0) == 10

    @pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
    @pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
    def test_workers_of_both_runtimes_carry_a_canvas_through_on_every_durable_engine(
        self, request: pytest.FixtureRequest, engine: str, is_async: bool, tmp_path: Path
    ) -> None:
        app = Celery("shop")
        if engine == "sqlite":
            app.conf.broker_url = f"sqlite:///{tmp_path / 'shop.db'}"
        else:
            app.conf.broker_url = request.getfixturevalue("postgres_command_url")

        @app.task(autoretry_for=(OSError,), retry_kwargs={"countdown": 0}, bind=True)
        def add(self: Task[..., Any], x: int, y: int) -> int:
            if self.request.retries == 0:
                raise OSError("once")
            return x + y

        @app.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        sent = chain(
            add.s(1, 1), group(add.s(1), add.s(2) | add.s(100)), total.s(), add.s(1000)
        ).apply_async()
        with working(app, is_async):
            assert sent.get(timeout=30) == 1107
        app.close()

    def test_a_chain_stops_at_a_failure_and_goes_on_after_its_retry(self, app: Celery) -> None:
        healthy: list[bool] = []

        @app.task
        def charge() -> int:
            if not healthy:
                raise ValueError("no")
            return 7

        @app.task
        def ship(order: int) -> str:
            return f"shipped {order}"

        sent = chain(charge.s(), ship.s()).apply_async()
        run(app)
        assert sent.state == "FAILURE"
        with pytest.raises(ValueError, match="no"):
            sent.get(timeout=0)
        healthy.append(True)
        SyncTroubleshootingQueue(app.bus).operator_retry(sent.parent.id)
        run(app)
        assert sent.get(timeout=0) == "shipped 7"

    def test_a_task_that_runs_again_sends_what_follows_once(self, app: Celery) -> None:
        ran: list[str] = []

        @app.task
        def first() -> str:
            return "a"

        @app.task
        def second(word: str) -> str:
            ran.append(word)
            return word

        class Crashing(Task[..., Any]):
            def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
                if not crashes:
                    crashes.append(1)
                    raise RetryAfter(0)

        crashes: list[int] = []
        first.__class__ = Crashing
        chain(first.s(), second.s()).apply_async()
        run(app)
        assert (ran, crashes) == (["a"], [1])

    def test_a_group_is_a_batch(self, app: Celery) -> None:
        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        sent = group(add.s(n, n) for n in range(3)).apply_async()
        batch = app.bus.get_batch(sent.id)
        assert batch is not None
        assert batch.total == 3
        run(app)
        assert (sent.get(timeout=0), sent.completed_count(), sent.successful()) == ([0, 2, 4], 3, True)

    def test_a_group_and_a_chord_may_have_several_queues(self, app: Celery) -> None:
        @app.task
        def here() -> int:
            return 1

        @app.task(queue="mail")
        def there() -> int:
            return 2

        @app.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        sent = group(here.s(), there.s()).apply_async()
        joined = chord([here.s(), there.s()])(total.s().set(queue="mail"))
        run(app)
        assert (sent.get(timeout=0), joined.get(timeout=0)) == ([1, 2], 3)

    def test_the_body_of_a_chord_gets_all_results(self, app: Celery) -> None:
        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        @app.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        sent = chord([add.s(n, n) | add.s(100) for n in range(3)])(total.s())
        empty = chord([])(total.s())
        run(app)
        assert (sent.get(timeout=0), empty.get(timeout=0)) == (306, 0)

    def test_the_body_of_a_chord_waits_for_an_operator(self, app: Celery) -> None:
        healthy: list[bool] = []

        @app.task
        def part(number: int) -> int:
            if number == 1 and not healthy:
                raise ValueError("no")
            return number

        @app.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        sent = chord(part.s(n) for n in range(3))(total.s())
        run(app)
        assert sent.state == "FAILURE"
        with pytest.raises(ChordError, match="Dependency"):
            sent.get(timeout=0)
        healthy.append(True)
        SyncTroubleshootingQueue(app.bus).operator_retry(sent.parent[1].id)
        run(app)
        assert sent.get(timeout=0) == 3

    def test_what_cannot_follow_is_refused_before_anything_is_sent(self, app: Celery) -> None:
        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        with pytest.raises(TypeError, match="too many positional arguments"):
            chain(add.s(1, 1), add.s(1, 1)).apply_async()
        with pytest.raises(NotPortable, match="a group after a group"):
            chain(group(add.s(1, 1)), group(add.s(1))).apply_async()
        with pytest.raises(NotPortable, match="inside a group"):
            group(chord([add.s(1, 1)], add.s(1))).apply_async()
        assert app.bus.stats("celery").depth == 0


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


REFUSED = [
    ("app = Celery('a', broker='redis://localhost')", 1, "Give the URL of the store"),
    ("app = Celery('a', backend='rpc://')", 1, "results are kept in the store"),
    ("app = Celery('a')\napp.conf.task_always_eager = True", 2, r"call drain\(app.bus, app.registry\)"),
    ("app = Celery('a')\napp.conf.task_serializer = 'pickle'", 2, "Payloads and results are JSON"),
    ("app = Celery('a')\napp.conf.update(worker_concurrency=4)", 2, "--concurrency N"),
    ("@shared_task\ndef f(*args): ...", 1, "name the parameters"),
    ("@shared_task\ndef f(x, /): ...", 1, "remove the `/`"),
    ("@shared_task\nasync def f(x): ...", 1, "@registry.command"),
    ("@shared_task\ndef f(x: object): ...", 1, "has no JSON form"),
    ("@shared_task\ndef f(x: 'Order'): ...", 1, "import its types at the top"),
    ("@shared_task(serializer='pickle')\ndef f(x): ...", 1, "pass ids instead of objects"),
    ("@shared_task(pydantic=True)\ndef f(x): ...", 1, "decoded and checked anyway"),
    ("@shared_task(rate_limit='often')\ndef f(x): ...", 1, "rate"),
    ("@shared_task(base=object)\ndef f(x): ...", 1, "Derive it from Task"),
    ("crontab(day_of_week=1, day_of_month=1)", 1, "keep one of them"),
    ("crontab(minute='61')", 1, "not a cron expression"),
    (f"from {celery.__name__} import signals", 1, "middleware"),
    (f"from {celery.__name__}.schedules import solar", 1, "Use a crontab"),
]


@pytest.mark.parametrize(("code", "line", "cure"), REFUSED, ids=[code[-40:] for code, _, _ in REFUSED])
def test_what_cannot_be_ported_fails_at_import_with_file_and_line(
    code: str, line: int, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = f"from {celery.__name__} import Celery, shared_task\n"
    second = f"from {celery.__name__}.schedules import crontab\n"
    (tmp_path / "ported.py").write_text(first + second + code)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("ported", None)

    with pytest.raises(ConfigurationError, match=cure) as refusal:
        __import__("ported")

    assert f"{tmp_path / 'ported.py'}:{line + 2}" in str(refusal.value)


def test_a_worker_process_runs_the_tasks_of_an_app(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'shop.db'}"
    (tmp_path / "ported.py").write_text(
        f"from {celery.__name__} import Celery\n"
        f"app = Celery('ported', broker={store!r}, include=['ported_tasks'])\n"
    )
    (tmp_path / "ported_tasks.py").write_text(
        "from ported import app\n\n@app.task\ndef add(x, y):\n    return x + y\n"
    )
    sent = subprocess.run(
        [sys.executable, "-c", "import ported_tasks; print(ported_tasks.add.delay(2, 3).id)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    arguments = ["worker", "ported:app.registry", "--url", store]
    worker = subprocess.Popen([sys.executable, "-m", "commandbus", *arguments], cwd=tmp_path)
    try:
        with SyncCommandBus(store) as bus:
            assert bus.wait(sent, timeout=30).result == 5
    finally:
        worker.terminate()
        worker.wait(30)
