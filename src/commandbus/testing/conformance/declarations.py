"""Schedules and limits declared beside handlers, and what operators make of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from commandbus.domain.schedule import Misfire, Schedule
from commandbus.errors import ConfigurationError, PayloadError
from commandbus.operations.declaring import DeclareReport
from commandbus.operations.schedules import tick
from commandbus.testing.conformance.helpers import registry_of, require, together
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry

NAME = f"{DOMAIN}.ship"
KEY = f"schedule/{NAME}"


def scheduled(**schedule: Any) -> HandlerRegistry:
    """A registry with a handler, and a schedule beside it if there are any arguments."""
    registry = HandlerRegistry()

    @registry.handler(DOMAIN, "ship")
    def ship(command: Any, context: Any) -> None: ...

    if schedule:
        registry.schedule(**schedule)(ship)
    return registry


def limited(bus: Harness, **options: Any) -> HandlerRegistry:
    require(bus, "gates")
    registry = HandlerRegistry()
    registry.register(DOMAIN, "ship", lambda command, context: None, **options)
    return registry


def declare(bus: Harness, registry: HandlerRegistry, **options: Any) -> DeclareReport:
    report: DeclareReport = bus.call(bus.bus.declare, registry, **options)
    return report


def present(bus: Harness, name: str = NAME) -> Schedule | None:
    record = bus.call(bus.bus.get_schedule, name)
    return None if record is None else record.schedule


class DeclarationsSuite:
    def test_a_worker_brings_declared_schedules_and_limits(self, bus: Harness) -> None:
        registry = scheduled(cron="0 2 * * *", timezone="Europe/Berlin", data={"n": 1}, misfire="skip")
        if bus.capabilities.gates:
            registry.register(DOMAIN, "pack", lambda *_: None, rate="10/m", concurrency=3)
        with bus.run_worker(registry):
            eventually(lambda: present(bus) is not None)
            if bus.capabilities.gates:  # each declaration is brought in by itself
                eventually(lambda: bus.call(bus.bus.list_limits, DOMAIN))
        schedule = present(bus)
        assert schedule is not None
        assert (schedule.cron, schedule.timezone, schedule.data) == (
            "0 2 * * *",
            "Europe/Berlin",
            {"n": 1},
        )
        assert (schedule.misfire, schedule.enabled) == (Misfire.SKIP, True)
        limits = bus.call(bus.bus.list_limits, DOMAIN)
        if bus.capabilities.gates:
            (limit,) = limits
            assert (limit.command_type, limit.concurrency) == ("pack", 3)
            assert limit.rate == pytest.approx(10 / 60)

    def test_a_typed_command_is_scheduled_with_a_payload_that_fits(self, bus: Harness) -> None:
        registry = HandlerRegistry(DOMAIN)

        @registry.schedule(every=3600, data={"order": 7})
        @registry.command
        async def ship(order: int) -> None: ...

        assert declare(bus, registry) == DeclareReport(created=(KEY,))
        with pytest.raises(PayloadError, match="order"):
            registry.schedule(every=60, name="other", data={"order": "x"})(ship)

    def test_registries_of_one_worker_declare_together(self, bus: Harness) -> None:
        other = HandlerRegistry()

        @other.schedule(every=60)
        @other.handler("billing", "charge")
        def charge(command: Any, context: Any) -> None: ...

        union = HandlerRegistry.union([scheduled(every=3600), other])
        assert declare(bus, union).created == (KEY, "schedule/billing.charge")

    def test_a_changed_declaration_is_followed(self, bus: Harness) -> None:
        assert declare(bus, scheduled(every=3600)) == DeclareReport(created=(KEY,))
        assert declare(bus, scheduled(every=3600)) == DeclareReport()
        assert declare(bus, scheduled(every=60)) == DeclareReport(updated=(KEY,))
        schedule = present(bus)
        assert schedule is not None
        assert schedule.every == 60

    def test_a_schedule_that_an_operator_disabled_stays_disabled(self, bus: Harness) -> None:
        declare(bus, scheduled(every=3600))
        bus.call(bus.bus.disable_schedule, NAME)
        assert declare(bus, scheduled(every=3600)) == DeclareReport()
        assert declare(bus, scheduled(every=60)) == DeclareReport(updated=(KEY,))
        schedule = present(bus)
        assert schedule is not None
        assert (schedule.every, schedule.enabled) == (60, False)

    def test_a_schedule_that_an_operator_edited_stays_as_it_is(self, bus: Harness) -> None:
        declare(bus, scheduled(every=3600))
        declared = present(bus)
        assert declared is not None
        bus.call(bus.bus.put_schedule, msgspec.structs.replace(declared, every=7200))
        for every in (3600, 60):
            assert declare(bus, scheduled(every=every)) == DeclareReport(kept=(KEY,))
        edited = present(bus)
        assert edited is not None
        assert edited.every == 7200
        assert declare(bus, scheduled(every=60), overwrite=True) == DeclareReport(updated=(KEY,))
        assert declare(bus, scheduled(every=30)) == DeclareReport(updated=(KEY,))

    def test_a_schedule_that_an_operator_deleted_stays_deleted(self, bus: Harness) -> None:
        declare(bus, scheduled(every=3600))
        bus.call(bus.bus.delete_schedule, NAME)
        assert declare(bus, scheduled(every=3600)) == DeclareReport(kept=(KEY,))
        assert present(bus) is None

    def test_a_schedule_that_was_put_by_hand_before_stays_as_it_is(self, bus: Harness) -> None:
        own = Schedule(name=NAME, domain=DOMAIN, command_type="ship", every=7200)
        bus.call(bus.bus.put_schedule, own)
        assert declare(bus, scheduled(every=3600)) == DeclareReport(kept=(KEY,))
        assert present(bus) == own

    def test_a_declaration_that_is_gone_is_reported_and_stays(self, bus: Harness) -> None:
        declare(bus, scheduled(every=3600))
        assert declare(bus, scheduled()) == DeclareReport(gone=(KEY,))
        assert present(bus) is not None
        other = registry_of("billing", charge=lambda command, context: None)
        assert declare(bus, other) == DeclareReport()
        bus.call(bus.bus.delete_schedule, NAME)
        assert declare(bus, scheduled()) == DeclareReport()

    def test_limits_follow_the_same_rule(self, bus: Harness) -> None:
        key = f"limit/{DOMAIN}/t:ship"
        assert declare(bus, limited(bus, rate="10/m")) == DeclareReport(created=(key,))
        assert declare(bus, limited(bus, rate="20/m")) == DeclareReport(updated=(key,))
        bus.call(bus.bus.set_limit, DOMAIN, "ship", concurrency=1)
        assert declare(bus, limited(bus, rate="30/m")) == DeclareReport(kept=(key,))
        (limit,) = bus.call(bus.bus.list_limits, DOMAIN)
        assert (limit.concurrency, limit.rate) == (1, None)

    def test_workers_that_start_together_agree(self, bus: Harness) -> None:
        reports = together(4, lambda _: declare(bus, scheduled(every=3600)))
        assert all(isinstance(report, DeclareReport) for report in reports)
        assert declare(bus, scheduled(every=60)) == DeclareReport(updated=(KEY,))

    def test_an_occurrence_is_left_out_while_an_earlier_one_has_not_ended(self, bus: Harness) -> None:
        def occur() -> int:
            bus.advance(2)
            bus.run(tick(bus.bus.scope))
            return len(bus.query(domain=DOMAIN))

        declare(bus, scheduled(every=1, overlap="skip"))
        assert occur() == 1
        worker = bus.worker()
        first = bus.take(worker)
        for _ in range(3):
            assert occur() == 1
        record = bus.call(bus.bus.get_schedule, NAME)
        assert record.last_command_id == first.command.command_id
        skipped = bus.call(bus.bus.trigger_schedule, NAME)
        assert (skipped.command_id, skipped.duplicate) == (first.command.command_id, True)
        bus.call(worker.complete, first)
        eventually(lambda: occur() == 2)
        record = bus.call(bus.bus.get_schedule, NAME)
        assert record.last_command_id != first.command.command_id

    def test_what_cannot_be_declared_is_refused_where_it_is_written(self, bus: Harness) -> None:
        registry = HandlerRegistry()

        def loose(command: Any, context: Any) -> None: ...

        with pytest.raises(ConfigurationError, match=r"loose.* is no handler of this registry"):
            registry.schedule(every=60)(loose)
        registry.register(DOMAIN, "ship", loose)
        with pytest.raises(ConfigurationError, match="not a cron expression"):
            registry.schedule(cron="often")(loose)
        with pytest.raises(ConfigurationError, match="overlap must be allow or skip"):
            registry.schedule(every=60, overlap="never")(loose)  # type: ignore[arg-type]
        registry.schedule(every=60)(loose)
        with pytest.raises(ConfigurationError, match="Two schedules are called"):
            registry.schedule(every=30)(loose)
        for wrong in ("10", "10/x", "ten/m", 10):
            with pytest.raises(ConfigurationError, match='such as "10/m"'):
                registry.register(DOMAIN, "pack", loose, rate=wrong)  # type: ignore[arg-type]
        assert not registry.limits

    def test_a_limit_that_the_engine_does_not_have_is_refused(self, bus: Harness) -> None:
        if bus.capabilities.gates:
            pytest.skip(f"{bus.configuration.name} has limits")
        registry = HandlerRegistry()
        registry.register(DOMAIN, "ship", lambda command, context: None, rate="10/m")
        with pytest.raises(ConfigurationError, match="only sends can be limited"):
            bus.worker(registry=registry)
