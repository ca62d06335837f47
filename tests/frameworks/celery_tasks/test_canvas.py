"""Chains, groups and chords as with Celery."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from commandbus import RetryAfter
from commandbus.integrations.celery import (
    Celery,
    NotPortable,
    Task,
    chain,
    chord,
    group,
)
from commandbus.integrations.celery.exceptions import (
    ChordError,
)
from commandbus.sync import SyncTroubleshootingQueue
from commandbus.testing import FakeClock
from tests.frameworks.celery_tasks.support import run, working


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

        crashes: list[int] = []

        class Crashing(Task[..., Any]):
            def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
                if not crashes:
                    crashes.append(1)
                    raise RetryAfter(0)

        @app.task(base=Crashing)
        def first() -> str:
            return "a"

        @app.task
        def second(word: str) -> str:
            ran.append(word)
            return word

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

    def test_a_group_inside_a_group_is_flat_and_one_may_follow_another(self, app: Celery) -> None:
        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        @app.task
        def total(numbers: list[int], more: int = 0) -> int:
            return sum(numbers) + more

        nested = group(add.s(1, 1), group(add.s(2, 2), add.s(3, 3))).delay()
        after = chain(group(add.s(1, 1), add.s(2, 2)), group(total.s(), total.s(10)), total.s()).delay()
        run(app)
        assert nested.get(timeout=0) == [2, 4, 6]
        assert after.get(timeout=0) == 22
        assert after.parent.get(timeout=0) == [6, 16]

    def test_options_of_a_canvas_are_those_of_its_tasks(
        self, app: Celery, command_clock: FakeClock
    ) -> None:
        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        @app.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        sent = group(add.s(1, 1), add.s(2, 2)).apply_async(countdown=60)
        body = chord([add.s(3, 3)])(total.s(), countdown=90)
        first = chain(add.s(4), add.s(5)).apply_async((1,), countdown=60)
        named = chain(add.s(), add.s(1)).apply_async(kwargs={"x": 2, "y": 3})
        run(app)
        assert [one.state for one in (*sent, first.parent, body)] == ["PENDING"] * 4
        assert (body.parent.get(timeout=0), named.get(timeout=0)) == ([6], 6)
        command_clock.advance(60)
        run(app)
        assert (sent.get(timeout=0), first.get(timeout=0), body.state) == ([2, 4], 10, "PENDING")
        command_clock.advance(30)
        run(app)
        assert body.get(timeout=0) == 6

    def test_what_cannot_follow_is_refused_before_anything_is_sent(self, app: Celery) -> None:
        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        with pytest.raises(TypeError, match="too many positional arguments"):
            chain(add.s(1, 1), add.s(1, 1)).apply_async()
        with pytest.raises(NotPortable, match="Keep the id of its result"):
            chain(add.s(1, 1), add.s(1)).apply_async(task_id=str(uuid4()))
        with pytest.raises(NotPortable, match="Keep the id of its result"):
            chain(add.s(1, 1), add.s(1).set(task_id=str(uuid4()))).apply_async()
        with pytest.raises(NotPortable, match="inside a group"):
            group(chord([add.s(1, 1)], add.s(1))).apply_async()
        assert app.bus.stats("celery").depth == 0
