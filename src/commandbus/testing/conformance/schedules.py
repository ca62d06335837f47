"""Schedules: kept in the store, one command per occurrence, whichever worker sends it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from commandbus.domain import schedule
from commandbus.domain.schedule import Misfire, Schedule
from commandbus.errors import ConfigurationError, InvalidArgumentError, InvalidOperationError
from commandbus.operations.schedules import KIND, disable_schedule, put_schedule, tick
from commandbus.testing.conformance.helpers import ReadBefore, registry_of, together
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness


def hourly(**changes: Any) -> Schedule:
    fields: dict[str, Any] = {"name": "s", "domain": DOMAIN, "command_type": "ship", "every": 3600}
    return Schedule(**(fields | changes))


def put(bus: Harness, schedule: Schedule) -> Any:
    return bus.call(bus.bus.put_schedule, schedule)


def get(bus: Harness, name: str = "s") -> Any:
    return bus.call(bus.bus.get_schedule, name)


def run_tick(bus: Harness) -> int:
    return bus.run(tick(bus.bus.scope)).sent


def sent(bus: Harness) -> int:
    return len(bus.query(domain=DOMAIN))


class ScheduleSuite:
    def test_nothing_is_sent_before_the_occurrence(self, bus: Harness) -> None:
        record = put(bus, hourly())
        assert record.next_run > bus.now - timedelta(seconds=1)
        assert run_tick(bus) == 0

    def test_an_occurrence_sends_one_command_with_its_data(self, bus: Harness) -> None:
        record = put(bus, hourly(data={"x": 1}, priority="high"))
        bus.advance(3600)
        assert run_tick(bus) == 1
        assert run_tick(bus) == 0
        (command,) = bus.query(domain=DOMAIN)
        assert (command.data, command.priority) == ({"x": 1}, 0)
        assert command.headers["schedule"] == "s"
        assert get(bus).last_command_id == command.command_id
        assert get(bus).next_run > record.next_run - timedelta(seconds=1)

    def test_many_schedulers_send_an_occurrence_once(self, bus: Harness) -> None:
        put(bus, hourly())
        bus.advance(3600)
        together(8, lambda _: run_tick(bus))
        assert sent(bus) == 1

    @pytest.mark.parametrize(
        ("misfire", "expected"), [(Misfire.ONCE, 1), (Misfire.SKIP, 0), (Misfire.ALL, 3)]
    )
    def test_missed_occurrences_follow_the_policy(
        self, bus: Harness, misfire: Misfire, expected: int
    ) -> None:
        put(bus, hourly(misfire=misfire))
        passed = bus.seconds_until(get(bus).next_run) + 2 * 3600 + 120
        bus.advance(passed)
        assert run_tick(bus) == expected
        assert bus.seconds_until(get(bus).next_run) > -passed

    def test_a_schedule_of_a_zone_that_this_machine_does_not_know_holds_up_no_other(
        self, bus: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It stays due, for a process that knows it."""
        put(bus, hourly(name="a", every=None, cron="0 * * * *", timezone="Europe/Berlin"))
        put(bus, hourly(name="b"))
        bus.advance(3700)

        def unknown(name: str) -> Any:
            raise ConfigurationError(f"Unknown time zone {name!r}")

        with monkeypatch.context() as here:
            here.setattr(schedule, "_zone", unknown)
            report = bus.run(tick(bus.bus.scope))
            assert report.sent == 1
            assert report.next_due_in is not None
            assert report.next_due_in > 0
            assert run_tick(bus) == 0
        assert run_tick(bus) == 1
        assert get(bus, "a").last_run is not None

    def test_a_disabled_schedule_sends_nothing(self, bus: Harness) -> None:
        put(bus, hourly())
        bus.call(bus.bus.disable_schedule, "s")
        bus.advance(7200)
        assert run_tick(bus) == 0
        assert get(bus).next_run is None
        bus.call(bus.bus.enable_schedule, "s")
        assert get(bus).next_run is not None
        assert run_tick(bus) == 0

    @pytest.mark.parametrize("change", ["disable", "put"])
    def test_a_change_during_a_send_is_kept(self, bus: Harness, change: str) -> None:
        put(bus, hourly())
        scope = bus.bus.scope
        before = bus.run(scope.store.get_document(KIND, "s"))
        bus.advance(3600)
        assert run_tick(bus) == 1
        late = replace(scope, store=ReadBefore(scope.store, before))
        if change == "put":
            bus.run(put_schedule(late, hourly(enabled=False)))
        else:
            bus.run(disable_schedule(late, "s"))
        assert not get(bus).schedule.enabled
        bus.advance(7200)
        assert run_tick(bus) == 0

    def test_enabling_what_is_enabled_drops_no_occurrence(self, bus: Harness) -> None:
        put(bus, hourly())
        bus.advance(3600)
        bus.call(bus.bus.enable_schedule, "s")
        assert run_tick(bus) == 1

    def test_trigger_sends_now_beside_the_occurrences(self, bus: Harness) -> None:
        planned = put(bus, hourly()).next_run
        sent = bus.call(bus.bus.trigger_schedule, "s")
        assert (sent.domain, sent.duplicate) == (DOMAIN, False)
        assert bus.get(sent.command_id).command_type == "ship"
        assert abs((get(bus).next_run - planned).total_seconds()) < 1

    def test_replacing_keeps_the_planned_occurrence_if_times_are_equal(self, bus: Harness) -> None:
        planned = put(bus, hourly()).next_run
        assert put(bus, hourly(data=2)).next_run == planned
        assert put(bus, hourly(every=7)).next_run != planned

    def test_schedules_come_in_pages(self, bus: Harness) -> None:
        for name in ("c", "a", "b"):
            put(bus, hourly(name=name))
        first = bus.call(bus.bus.list_schedules, limit=2)
        assert [record.schedule.name for record in first] == ["a", "b"]
        rest = bus.call(bus.bus.list_schedules, after=first.next)
        assert ([record.schedule.name for record in rest], rest.next) == (["c"], None)
        with pytest.raises(InvalidArgumentError, match="limit"):
            bus.call(bus.bus.list_schedules, limit=0)

    def test_schedules_are_listed_by_name_and_deleted(self, bus: Harness) -> None:
        for name in ("b", "a"):
            put(bus, hourly(name=name))
        listed = bus.call(bus.bus.list_schedules)
        assert [record.schedule.name for record in listed] == ["a", "b"]
        assert bus.call(bus.bus.delete_schedule, "a") is True
        assert bus.call(bus.bus.delete_schedule, "a") is False
        assert get(bus, "a") is None

    def test_a_worker_runs_the_schedules(self, open_bus: Any) -> None:
        bus, recorder = open_bus(real_time=True), Recorder()
        with bus.run_worker(registry_of(ship=recorder)):
            put(bus, hourly(every=1))
            first, second = recorder.wait_for(2)[:2]
        assert first.headers["occurrence"] != second.headers["occurrence"]

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"every": None, "cron": "61 * * * *"}, "61"),
            ({"every": None, "cron": "* * *"}, "five fields"),
            ({"every": None, "cron": "* * * * *", "timezone": "Mars/Base"}, "Mars/Base"),
            ({"timezone": "Mars/Phobos"}, "Mars/Phobos"),
            ({"every": None}, "either cron or every"),
            ({"cron": "* * * * *"}, "either cron or every"),
            ({"every": -1}, "every"),
            ({"misfire": "never"}, "misfire"),
            ({"priority": "urgent"}, "urgent"),
            ({"data": float("nan")}, "nan"),
            ({"name": "no spaces"}, "no spaces"),
        ],
    )
    def test_a_wrong_schedule_is_refused(
        self, bus: Harness, change: dict[str, Any], named: str
    ) -> None:
        with pytest.raises(ValueError, match=named):
            put(bus, hourly(**change))
        assert not bus.call(bus.bus.list_schedules)

    def test_an_unknown_schedule_cannot_be_triggered(self, bus: Harness) -> None:
        with pytest.raises(InvalidOperationError, match="nosuch"):
            bus.call(bus.bus.trigger_schedule, "nosuch")


def occurrences(cron: str, zone: str, after: datetime, count: int) -> list[datetime]:
    schedule = Schedule(name="s", domain="d", command_type="t", cron=cron, timezone=zone)
    upcoming = schedule.occurrences_after(after)
    return [next(upcoming) for _ in range(count)]


class DaylightSavingSuite:
    """Occurrences around the changes of the clock in Berlin, which are the same for every engine."""

    def test_an_hour_that_does_not_exist_still_has_its_occurrence_once(self) -> None:
        days = occurrences("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), 2)
        assert days == [
            datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
            datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
        ]

    def test_an_hourly_occurrence_follows_real_time(self) -> None:
        forward = occurrences("0 * * * *", "Europe/Berlin", datetime(2026, 3, 29, 0, tzinfo=UTC), 2)
        back = occurrences("0 * * * *", "Europe/Berlin", datetime(2026, 10, 24, 23, tzinfo=UTC), 3)
        assert forward == [datetime(2026, 3, 29, hour, tzinfo=UTC) for hour in (1, 2)]
        assert back == [datetime(2026, 10, 25, hour, tzinfo=UTC) for hour in (0, 1, 2)]

    def test_an_hour_that_comes_twice_has_its_occurrence_once(self) -> None:
        days = occurrences("30 2 * * *", "Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC), 2)
        assert days == [
            datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
            datetime(2026, 10, 26, 1, 30, tzinfo=UTC),
        ]

    def test_the_next_occurrence_lies_ahead_also_in_the_hour_that_comes_twice(self) -> None:
        again = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
        assert occurrences("30 2 * * *", "Europe/Berlin", again, 1) == [
            datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
        ]

    def test_an_unknown_zone_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="Nowhere"):
            occurrences("* * * * *", "Nowhere", datetime(2026, 1, 1, tzinfo=UTC), 1)
