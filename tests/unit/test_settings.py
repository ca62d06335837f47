"""Settings: sensible by default, and one error that names everything that is wrong."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from commandbus import BusSettings, RetryPolicy, WorkerSettings
from commandbus.engines.postgres import location
from commandbus.errors import ConfigurationError
from commandbus.interfaces.cli import worker_settings
from commandbus.interfaces.cli.workers import worker
from commandbus.settings import DEFAULT_URL, BusOptions, WorkerOptions, resolve_url
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.worker.serving import check_domains

GUIDE = Path(__file__).parents[2] / "docs/guide"


def test_the_defaults_are_valid() -> None:
    worker = WorkerSettings()
    assert (worker.concurrency, worker.poll_interval, worker.visibility_timeout) == (4, 60.0, 30.0)
    assert BusSettings().max_attempts == 3


def names(settings: type[BusSettings | WorkerSettings]) -> list[str]:
    return [setting.name for setting in fields(settings)]


def test_every_setting_is_an_argument() -> None:
    assert list(get_type_hints(WorkerOptions)) == names(WorkerSettings)
    assert list(BusOptions.__annotations__) == names(BusSettings)


@pytest.mark.parametrize(
    ("page", "settings", "others"),
    [
        ("workers.md", WorkerSettings, {"middleware", "name"}),
        ("sending.md", BusSettings, set()),
    ],
)
def test_the_guide_lists_every_setting(
    page: str, settings: type[BusSettings | WorkerSettings], others: set[str]
) -> None:
    text = (GUIDE / page).read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| setting \|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    first = [row.split("|")[1] for row in table.splitlines()]
    listed = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert set(listed) - others == set(names(settings))
    assert len(set(listed)) == len(listed)


def test_the_command_line_can_set_every_setting_but_code() -> None:
    samples: dict[str, tuple[str, Any]] = {
        "tags": ("gpu,big", ("big", "gpu")),
        "recorder": ("/run/recorders", "/run/recorders"),
        "max_concurrency": ("9", 9),
        "statement_timeout": ("200ms", 0.2),
    }
    assigned, expected = [], {}
    for name in names(WorkerSettings):
        if name == "retry_policy":  # written in code
            continue
        whole = "int" in WorkerSettings.__annotations__[name]
        text, value = samples.get(name, ("7", 7) if whole else ("1500ms", 1.5))
        assigned.append(f"{name}={text}")
        expected[name] = value
    settings = worker_settings.parse(assigned)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_the_defaults_of_the_command_line_are_those_of_the_settings() -> None:
    defaults = inspect.signature(worker).parameters
    assert defaults["concurrency"].default == WorkerSettings().concurrency
    assert defaults["shutdown_timeout"].default == f"{WorkerSettings().shutdown_timeout:g}s"


def test_a_worker_takes_settings_and_arguments_over_them() -> None:
    bus = SyncCommandBus("memory://", settings=BusSettings(max_attempts=5), max_pending=9)
    assert (bus.settings.max_attempts, bus.settings.max_pending) == (5, 9)
    base = WorkerSettings(concurrency=7, prefetch_max=3)
    worker = SyncWorker(bus, "d", settings=base, prefetch_budget=timedelta(seconds=1), tags=["gpu"])
    assert worker.settings == replace(base, prefetch_budget=1.0, tags=("gpu",))


def test_a_misspelt_setting_is_refused_with_the_right_one() -> None:
    bus = SyncCommandBus("memory://")
    with pytest.raises(ConfigurationError, match="no setting 'concurency', but concurrency"):
        SyncWorker(bus, "d", concurency=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="no setting 'max_atempts', but max_attempts"):
        SyncCommandBus("memory://", max_atempts=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="no setting 'zzz', but concurrency, prefetch"):
        SyncWorker(bus, "d", zzz=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="settings must be WorkerSettings, not BusSettings"):
        SyncWorker(bus, "d", settings=BusSettings())  # type: ignore[arg-type]


def test_each_layer_of_timeouts_has_its_default() -> None:
    worker = WorkerSettings()
    assert worker.statement_seconds == 25
    assert location.parse("postgresql://localhost/shop").pool_timeout == 30
    assert worker.visibility_timeout == 30
    assert worker.stuck_after == 35
    assert worker.silence_timeout == 60


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("concurrency", 0),
        ("concurrency", True),
        ("concurrency", 2.0),
        ("concurrency", "4"),
        ("prefetch", -1),
        ("prefetch", 1.5),
        ("prefetch_max", -1),
        ("poll_interval", 0.05),
        ("poll_interval", -1),
        ("poll_interval", float("nan")),
        ("visibility_timeout", 0),
        ("visibility_timeout", "30"),
        ("thread_timeout", 0),
        ("jitter", -0.1),
        ("timer_grace", -0.1),
        ("prefetch_budget", -1),
        ("shutdown_timeout", float("inf")),
        ("retry_policy", 5),
    ],
)
def test_a_wrong_worker_setting_is_named(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        WorkerSettings(**{name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("max_attempts", 0, "max_attempts"),
        ("max_pending", 0, "max_pending"),
        ("payload_bytes_max", 0, "payload_bytes_max"),
        ("default_priority", "urgent", "Unknown priority label 'urgent'"),
        ("default_priority", 99_999, "priority must be between"),
        ("priorities", {"normal": "5"}, "Unknown priority label '5'"),
        ("priorities", {"normal": 99_999}, "priority must be between"),
        ("warn_depth", 5, "warn_depth needs max_pending"),
        ("escalate_to", "ops", "escalate_to needs escalate_after"),
    ],
)
def test_a_wrong_bus_setting_is_named(name: str, wrong: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        BusSettings(**{name: wrong})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"statement_timeout": 30, "visibility_timeout": 30}, "less than visibility_timeout \\(30 s"),
        ({"statement_timeout": 5, "thread_timeout": 5}, "less than thread_timeout \\(5 s"),
        ({"statement_timeout": 10, "silence_timeout": 10}, "less than silence_timeout \\(10 s"),
        ({"min_concurrency": 2}, "Give both min_concurrency and max_concurrency"),
        ({"max_concurrency": 2}, "Give both min_concurrency and max_concurrency"),
        ({"min_concurrency": 3, "max_concurrency": 2}, "3 is above 2"),
    ],
)
def test_worker_settings_that_cannot_work_together_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        WorkerSettings(**settings)


def test_a_warning_that_could_never_come_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"warn_depth \(11\) must not be above max_pending"):
        BusSettings(max_pending=10, warn_depth=11)
    assert BusSettings(max_pending=10, warn_depth=10).warn_depth == 10


def test_all_problems_are_in_one_message() -> None:
    with pytest.raises(ConfigurationError) as caught:
        WorkerSettings(concurrency=0, prefetch=-1, poll_interval=0.0, visibility_timeout=-1, jitter=-1)
    for name in ("concurrency", "prefetch", "poll_interval", "visibility_timeout", "jitter"):
        assert name in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        BusSettings(max_attempts=0, max_pending=-1, default_priority="x")
    for name in ("max_attempts", "max_pending", "'x'"):
        assert name in str(caught.value)


def test_a_worker_names_all_problems_of_its_arguments() -> None:
    bus = SyncCommandBus("memory://")
    with pytest.raises(ConfigurationError) as caught:
        SyncWorker(bus, "d", concurrency=0, poll_interval=-1, visibility_timeout=timedelta(-1))
    for name in ("concurrency", "poll_interval", "visibility_timeout"):
        assert name in str(caught.value)


def test_durations_of_a_worker_may_be_timedeltas() -> None:
    bus = SyncCommandBus("memory://")
    worker = SyncWorker(bus, "d", poll_interval=timedelta(seconds=5), visibility_timeout=12)
    assert (worker.settings.poll_interval, worker.settings.visibility_timeout) == (5.0, 12)
    assert SyncWorker(bus, "d", retry_policy=RetryPolicy(2)).settings.retry_policy == RetryPolicy(2)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        WorkerSettings().concurrency = 5  # type: ignore[misc]


def test_the_url_is_the_argument_then_the_environment_then_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMMANDBUS_URL", "memory://environment")
    assert resolve_url("memory://argument") == "memory://argument"
    assert resolve_url(None) == "memory://environment"
    monkeypatch.delenv("COMMANDBUS_URL")
    assert resolve_url(None) == DEFAULT_URL


def test_a_worker_serves_each_of_its_domains_once() -> None:
    assert check_domains("a") == ("a",)
    assert check_domains(["b", "a", "b"]) == ("b", "a")
    with pytest.raises(ConfigurationError, match="at least one domain"):
        check_domains([])
    with pytest.raises(ValueError, match="not a valid name"):
        check_domains(["a", "b c"])
