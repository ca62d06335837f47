"""Settings: sensible by default, and one error that names everything that is wrong."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from commandbus import BusSettings, RetryPolicy, WorkerSettings
from commandbus.engines.postgres import location
from commandbus.errors import ConfigurationError
from commandbus.settings import DEFAULT_URL, resolve_url
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.worker.serving import check_domains


def test_the_defaults_are_valid_and_documented() -> None:
    worker = WorkerSettings()
    assert (worker.concurrency, worker.poll_interval, worker.visibility_timeout) == (4, 60.0, 30.0)
    assert BusSettings().max_attempts == 3


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
    ],
)
def test_a_wrong_bus_setting_is_named(name: str, wrong: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        BusSettings(**{name: wrong})


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
