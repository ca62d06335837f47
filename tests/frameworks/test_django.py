"""Django's tasks on the bus: sending, results, transactions, and workers that run known tasks only."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from commandbus.domain.names import as_name
from commandbus.errors import InvalidArgumentError, PayloadError
from commandbus.sync import SyncCommandBus
from commandbus.testing import drain
from tests.support.django_site import set_up_django

set_up_django()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402

from commandbus.integrations.django import api, handling  # noqa: E402
from commandbus.integrations.django.backend import CommandBusBackend  # noqa: E402
from tests.frameworks.shop import tasks  # noqa: E402
from tests.frameworks.shop.settings import DATABASE, TASKS  # noqa: E402
from tests.tidy.project import ROOT  # noqa: E402


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    tasks.done.clear()
    yield
    bus = api.task_backends["default"].bus
    for domain in ("default", "mail", "payments"):
        bus.purge(domain)


@pytest.fixture
def bus() -> SyncCommandBus:
    found: SyncCommandBus = api.task_backends["default"].bus
    return found


def run_all(bus: SyncCommandBus) -> list[Any]:
    return drain(bus, handling.registry_for())


def test_a_task_is_sent_run_and_read_back(bus: SyncCommandBus) -> None:
    result = tasks.add.enqueue(2, b=3)
    assert result.status == "READY"
    (record,) = run_all(bus)
    assert (record.domain, record.command_type) == ("default", "tests.frameworks.shop.tasks.add")
    assert str(record.command_id) == result.id

    result.refresh()

    assert (result.status, result.return_value) == ("SUCCESSFUL", 5)
    assert (result.args, result.kwargs) == ([2], {"b": 3})
    assert result.attempts == 1
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert tasks.add.get_result(result.id).return_value == 5
    with pytest.raises(Exception, match="does not match"):
        tasks.refuse.get_result(result.id)


def test_a_typed_command_is_sent_and_run_beside_tasks(bus: SyncCommandBus) -> None:
    backend = api.task_backends["default"]
    sent = backend.send(tasks.charge(order=7, amount=Decimal("1.50")), priority="high")
    tasks.add.enqueue(2)
    run_all(bus)
    assert sorted(tasks.done) == [("add", 2, 0), ("charge", 7, Decimal("1.50"))]
    record = bus.get_command(sent)
    assert record is not None
    assert (record.domain, record.priority, record.result) == ("payments", 0, Decimal("3.00"))
    with pytest.raises(PayloadError, match="order"):
        backend.send(tasks.charge(order="x", amount=Decimal(1)))  # type: ignore[arg-type]


async def test_a_typed_command_is_sent_from_async_code(bus: SyncCommandBus) -> None:
    sent = await api.task_backends["default"].asend(tasks.notify(order=7))
    await asyncio.to_thread(run_all, bus)
    assert bus.wait(sent, timeout=5).result == "order 7"


def test_a_typed_command_is_part_of_the_transaction(bus: SyncCommandBus) -> None:
    backend = api.task_backends["default"]
    with transaction.atomic():
        lost = backend.send(tasks.notify(order=1))
        transaction.set_rollback(True)
    with transaction.atomic():
        kept = backend.send(tasks.notify(order=2))
    assert bus.get_command(lost) is None
    assert bus.get_command(kept) is not None


def test_a_typed_command_after_the_commit_has_its_id_before(tmp_path: Path) -> None:
    options = {"URL": f"sqlite:///{tmp_path}/elsewhere.db", "ON_COMMIT": "default"}
    backend = CommandBusBackend("elsewhere", {"OPTIONS": options})
    with transaction.atomic():
        sent = backend.send(tasks.notify(order=1))
        assert backend.bus.get_command(sent) is None
        with pytest.raises(InvalidArgumentError, match="either delay or due_at"):
            backend.send(tasks.notify(order=2), delay=1, due_at=timezone.now())
    record = backend.bus.get_command(sent)
    assert record is not None
    assert record.data == {"order": 1}


@pytest.mark.parametrize(
    "registries", ["tests.frameworks.shop.tasks.payments", [7], ["nowhere.payments"], ["os.path"]]
)
def test_registries_are_paths_of_registries(registries: Any) -> None:
    wrong = {**TASKS["default"], "OPTIONS": {"DATABASE": "default", "REGISTRIES": registries}}
    with (
        override_settings(TASKS={"default": wrong}),
        pytest.raises(ImproperlyConfigured, match="REGISTRIES"),
    ):
        handling.registry_for()


async def test_async_tasks_are_sent_from_async_code(bus: SyncCommandBus) -> None:
    result = await tasks.greet.aenqueue("Ann")
    await asyncio.to_thread(run_all, bus)
    await result.arefresh()
    assert result.return_value == "Hello Ann"
    assert result.task.queue_name == "mail"


def test_priority_and_run_after_are_those_of_the_bus(bus: SyncCommandBus) -> None:
    tomorrow = timezone.now() + timedelta(days=1)
    later = tasks.add.using(run_after=tomorrow).enqueue(0)
    tasks.add.using(priority=-5).enqueue(1)
    tasks.add.using(priority=5).enqueue(2)
    tasks.add.enqueue(3)
    run_all(bus)
    assert [a for _, a, _ in tasks.done] == [2, 3, 1]
    record = bus.get_command(later.id)
    assert record is not None
    assert record.due_at == tomorrow
    later.refresh()
    assert (later.status, later.task.run_after) == ("READY", tomorrow)


def test_failed_attempts_are_shown_with_their_tracebacks(bus: SyncCommandBus) -> None:
    result = tasks.fail_once.enqueue()
    run_all(bus)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 2, 2)
    (error,) = result.errors
    assert error.exception_class is ConnectionError
    assert "the first time always fails" in error.traceback

    refused = tasks.refuse.enqueue()
    run_all(bus)
    refused.refresh()
    assert (refused.status, len(refused.errors)) == ("FAILED", 1)
    with pytest.raises(ValueError, match="failed"):
        refused.return_value  # noqa: B018


def test_signals_follow_a_task(bus: SyncCommandBus) -> None:
    seen: list[tuple[str, str]] = []

    def note(name: str) -> Any:
        return lambda task_result, **_: seen.append((name, str(task_result.status)))

    receivers = {
        signal: note(name)
        for name, signal in (
            ("enqueued", api.task_enqueued),
            ("started", api.task_started),
            ("finished", api.task_finished),
        )
    }
    for signal, receiver in receivers.items():
        signal.connect(receiver, weak=False)
    try:
        tasks.add.enqueue(1)
        tasks.refuse.enqueue()
        run_all(bus)
    finally:
        for signal, receiver in receivers.items():
            signal.disconnect(receiver)
    assert [(name, status.rpartition(".")[2]) for name, status in seen] == [
        ("enqueued", "READY"),
        ("enqueued", "READY"),
        ("started", "RUNNING"),
        ("finished", "SUCCESSFUL"),
        ("started", "RUNNING"),
        ("finished", "FAILED"),
    ]


def test_a_task_is_part_of_the_transaction_on_the_database_of_the_bus(bus: SyncCommandBus) -> None:
    with transaction.atomic():
        undone = tasks.add.enqueue(1)
        transaction.set_rollback(True)
    with transaction.atomic():
        kept = tasks.add.enqueue(2)
        with SyncCommandBus(f"sqlite:///{DATABASE}") as other:
            assert other.stats("default").depth == 0
        assert bus.stats("default").depth == 1, "the bus is part of the transaction"
    assert bus.stats("default").depth == 1
    assert tasks.add.get_result(kept.id).args == [2]
    with pytest.raises(api.TaskResultDoesNotExist):
        tasks.add.get_result(undone.id)


def test_a_task_is_sent_after_the_commit_where_the_bus_is_elsewhere(tmp_path: Path) -> None:
    options = {"URL": f"sqlite:///{tmp_path}/elsewhere.db", "ON_COMMIT": "default"}
    with override_settings(TASKS={"default": TASKS["default"] | {"OPTIONS": options}}):
        elsewhere = api.task_backends["default"].bus
        with transaction.atomic():
            tasks.add.enqueue(1)
            transaction.set_rollback(True)
        with transaction.atomic():
            kept = tasks.add.enqueue(2)
            assert elsewhere.stats("default").depth == 0
        assert elsewhere.stats("default").depth == 1
        assert tasks.add.get_result(kept.id).args == [2]


def test_what_a_command_names_is_never_imported(bus: SyncCommandBus) -> None:
    """A function that is no task does not run, although its path is right, and its module known."""
    path = "tests.frameworks.shop.tasks.not_a_task"
    sent = bus.send("default", path, {"task": path, "args": [], "kwargs": {}})
    bus.send("default", "os.system", {"task": "os.system", "args": ["true"], "kwargs": {}})
    module = "tests.frameworks.shop.never"
    bus.send("default", f"{module}.f", {"task": f"{module}.f", "args": [], "kwargs": {}})
    assert [str(r.status) for r in run_all(bus)] == ["PENDING"] * 3
    assert tasks.done == []
    assert module not in sys.modules
    with pytest.raises(api.TaskResultDoesNotExist, match="no task that this process has imported"):
        tasks.add.get_result(str(sent.command_id))


def test_results_that_are_not_there_do_not_exist() -> None:
    for unknown in (str(uuid4()), "no id at all"):
        with pytest.raises(api.TaskResultDoesNotExist):
            tasks.add.get_result(unknown)


def test_wrong_options_are_refused() -> None:
    for options, complaint in (
        ({"URI": "memory://"}, "unknown OPTIONS"),
        ({"DATABASE": "default", "ON_COMMIT": "default"}, "DATABASE and ON_COMMIT"),
        ({"URL": "memory://", "RETRY": {"max_attempts": 0}}, "max_attempts"),
        ({"URL": "memory://", "RETRY": {"attempts": 1}}, "attempts"),
    ):
        with pytest.raises(ImproperlyConfigured, match=complaint):
            CommandBusBackend("default", {"OPTIONS": options})
    with pytest.raises(ImproperlyConfigured, match="not a valid name"):
        CommandBusBackend("default", {"QUEUES": ["no good"], "OPTIONS": {"URL": "memory://"}})


def test_a_long_path_has_a_name_of_its_own() -> None:
    one = handling.command_type_of("a" * 40 + ".tasks." + "b" * 40)
    other = handling.command_type_of("c" * 40 + ".tasks." + "b" * 40)
    assert len(one) == len(other) == 62
    assert one != other
    assert as_name(handling.command_type_of("shop.tasks.größe"), "command_type")


def test_a_worker_of_the_site_carries_them_out(bus: SyncCommandBus) -> None:
    results = [tasks.add.enqueue(1), tasks.greet.enqueue("Ann")]
    connection.close()
    command = [sys.executable, "-m", "django", "commandbus_worker", "--recycle-after", "2"]
    run = subprocess.run(
        [*command, "--settings", "tests.frameworks.shop.settings", "--pythonpath", str(ROOT)],
        cwd=ROOT,
        env={"SHOP_FOLDER": str(DATABASE.parent), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == [1, "Hello Ann"]


def test_the_dashboard_of_a_backend_needs_accounts_to_answer_to_other_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[Any] = []

    async def serve(server: Any, listener: Any) -> None:
        served.append(server.config.app)
        listener.close()

    monkeypatch.setattr("commandbus.interfaces.web.serving.serve", serve)
    with pytest.raises(CommandError, match="accounts"):
        call_command("commandbus_dashboard", host="0.0.0.0", port=0)
    call_command("commandbus_dashboard", port=0)
    assert len(served) == 1
