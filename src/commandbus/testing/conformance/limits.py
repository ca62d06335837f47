"""Limits: how many run at once and start per second; and who may take what."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.limits import Limit
from commandbus.errors import (
    ConfigurationError,
    InvalidArgumentError,
    InvalidOperationError,
    RateLimited,
)
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.groups import take_all
from commandbus.testing.conformance.helpers import registry_of, require
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually


def set_limit(bus: Harness, *args: Any, **options: Any) -> None:
    bus.call(bus.bus.set_limit, DOMAIN, *args, **options)


def send_some(bus: Harness, count: int, command_type: str = "mail", **options: Any) -> None:
    requests = [SendRequest(DOMAIN, command_type, n, **options) for n in range(count)]
    bus.call(bus.bus.send_many, requests)


def reached(done: list[Any], count: int) -> bool:
    return len(done) == count


class LimitsSuite:
    @pytest.fixture(autouse=True)
    def _with_gates(self, bus: Harness) -> None:
        require(bus, "gates")

    def test_so_many_of_a_type_run_at_once(self, bus: Harness) -> None:
        set_limit(bus, "mail", concurrency=2)
        send_some(bus, 5)
        bus.send(DOMAIN, "ship", "other")
        worker = bus.worker()
        received = bus.call(worker.receive, 10)
        assert [r.command.data for r in received] == [0, 1, "other"]
        assert take_all(bus, worker) == []
        bus.call(worker.complete, received[0])
        assert take_all(bus, worker) == [2]

    def test_so_many_of_a_domain_run_at_once(self, bus: Harness) -> None:
        set_limit(bus, concurrency=3)
        send_some(bus, 3, "mail")
        send_some(bus, 3, "ship")
        worker = bus.worker()
        received = bus.call(worker.receive, 10)
        assert len(received) == 3
        bus.call(worker.complete, received[0])
        bus.call(worker.complete, received[1])
        assert len(bus.call(worker.receive, 10)) == 2
        assert take_all(bus, bus.worker("others")) == []

    def test_a_limit_holds_for_what_waits_already(self, bus: Harness) -> None:
        send_some(bus, 5)
        send_some(bus, 1, delay=60)
        set_limit(bus, "mail", concurrency=2)
        worker = bus.worker()
        assert take_all(bus, worker) == [0, 1]
        bus.advance(61)
        assert take_all(bus, worker) == []
        assert bus.stats().depth == 4

    def test_limits_of_type_and_domain_hold_together(self, bus: Harness) -> None:
        set_limit(bus, "mail", concurrency=2)
        set_limit(bus, concurrency=3)
        send_some(bus, 5)
        send_some(bus, 5, "ship")
        types = [r.command.command_type for r in bus.call(bus.worker().receive, 10)]
        assert len(types) == 3
        assert types.count("mail") <= 2

    def test_so_many_of_a_key_run_at_once(self, bus: Harness) -> None:
        set_limit(bus, per_key=True, concurrency=2)
        send_some(bus, 4, group_key="a")
        send_some(bus, 1, group_key="b")
        assert sorted(take_all(bus, bus.worker())) == [0, 0, 1]

    def test_a_rate_lets_its_burst_pass_and_then_so_many_per_second(self, bus: Harness) -> None:
        set_limit(bus, "mail", rate=1, per=60, burst=3)
        send_some(bus, 10)
        bus.send(DOMAIN, "ship", "other")
        worker = bus.worker()
        assert take_all(bus, worker) == [0, 1, 2, "other"]
        bus.advance(59 - 3)
        assert take_all(bus, worker) == []
        bus.advance(1 + 3)
        assert take_all(bus, worker) == [3]
        bus.advance(120)
        assert take_all(bus, worker) == [4, 5]
        bus.advance(6000)
        assert take_all(bus, worker) == [6, 7, 8], "no more than the burst is saved up"

    def test_a_rate_of_a_domain_and_of_a_key(self, bus: Harness) -> None:
        set_limit(bus, rate=1, per=60, burst=4)
        set_limit(bus, per_key=True, rate=1, per=60, concurrency=100)
        send_some(bus, 3, group_key="a")
        send_some(bus, 3, group_key="b")
        send_some(bus, 3)
        assert sorted(take_all(bus, bus.worker())) == [0, 0, 0, 1]

    def test_an_idle_worker_goes_on_when_a_token_comes(self, open_bus: Any) -> None:
        bus: Harness = open_bus(real_time=True)
        set_limit(bus, "mail", rate=20, burst=1)
        done: list[int] = []
        send_some(bus, 5)
        with bus.run_worker(registry_of(mail=lambda command, context: done.append(command.data))):
            eventually(lambda: bus.stats().completed == 5)
        assert done == [0, 1, 2, 3, 4]

    def test_a_limit_that_is_cleared_holds_nothing_back(self, bus: Harness) -> None:
        set_limit(bus, "mail", concurrency=1)
        send_some(bus, 3)
        worker = bus.worker()
        assert take_all(bus, worker) == [0]
        bus.call(bus.bus.clear_limit, DOMAIN, "mail")
        assert take_all(bus, worker) == [1, 2]
        with pytest.raises(InvalidOperationError, match="no such limit"):
            bus.call(bus.bus.clear_limit, DOMAIN, "mail")

    def test_a_limit_that_is_raised_lets_more_pass(self, bus: Harness) -> None:
        set_limit(bus, "mail", concurrency=1)
        send_some(bus, 4)
        worker = bus.worker()
        assert take_all(bus, worker) == [0]
        set_limit(bus, "mail", concurrency=3)
        assert take_all(bus, worker) == [1, 2]

    def test_what_fails_or_is_lost_gives_its_place_back(self, bus: Harness) -> None:
        set_limit(bus, "mail", concurrency=1)
        send_some(bus, 2)
        worker = bus.worker()
        [first] = bus.call(worker.receive, 10)
        bus.call(worker.release, first)
        [first] = bus.call(worker.receive, 10, 30)
        assert first.command.data == 0
        bus.advance(31)
        [first] = bus.call(worker.receive, 10)
        assert first.claimed.crashes == 1
        bus.call(worker.fail, first, "broken", False)
        assert take_all(bus, worker) == [1]

    def test_limits_are_listed(self, bus: Harness) -> None:
        set_limit(bus, "mail", concurrency=2)
        set_limit(bus, rate=100)
        bus.call(bus.bus.set_limit, "others", per_key=True, rate=30, per=60, burst=2)
        mine = [Limit(DOMAIN, rate=100.0, burst=40), Limit(DOMAIN, "mail", concurrency=2)]
        assert list(bus.call(bus.bus.list_limits, DOMAIN)) == mine
        others = Limit("others", per_key=True, rate=0.5, burst=2)
        found = bus.call(bus.bus.list_limits)
        assert sorted(found, key=str) == sorted([*mine, others], key=str)
        assert found.next is None

    @pytest.mark.parametrize(
        ("options", "words"),
        [({"concurrency": 1}, "1 at once"), ({"rate": 1, "per": 60, "burst": 1}, "1 per minute")],
        ids=["concurrency", "rate"],
    )
    def test_why_names_the_limit(self, bus: Harness, options: dict[str, Any], words: str) -> None:
        set_limit(bus, "mail", **options)
        send_some(bus, 1)
        held = bus.send(DOMAIN, "mail")
        assert take_all(bus, bus.worker()) == [0]
        answer = bus.call(bus.bus.why, held)
        assert "LIMIT_REACHED" in [reason.code for reason in answer.reasons]
        assert words in answer.summary

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"concurrency": 0},
            {"concurrency": -1},
            {"concurrency": 1.5},
            {"concurrency": True},
            {"rate": 0},
            {"rate": -5},
            {"rate": "many"},
            {"rate": 1, "per": 0},
            {"rate": 1, "per": -1},
            {"rate": 1, "burst": 0},
            {"concurrency": 1, "burst": 5},
            {"concurrency": 1, "command_type": "mail", "per_key": True},
            {"concurrency": 1, "command_type": "not a name"},
        ],
    )
    def test_a_bad_limit_is_refused(self, bus: Harness, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError):
            set_limit(bus, **options)
        assert not bus.call(bus.bus.list_limits)


class TagsSuite:
    @pytest.fixture(autouse=True)
    def _with_gates(self, bus: Harness) -> None:
        require(bus, "gates")

    def test_only_a_worker_with_the_tags_takes_it(self, bus: Harness) -> None:
        bus.send(DOMAIN, "render", "gpu", requires=["gpu"])
        bus.send(DOMAIN, "render", "both", requires=["gpu", "eu"])
        bus.send(DOMAIN, "render", "any")
        assert take_all(bus, bus.worker()) == ["any"]
        assert take_all(bus, bus.worker(tags=["eu"])) == []
        assert take_all(bus, bus.worker(tags=["gpu", "big"])) == ["gpu"]
        assert take_all(bus, bus.worker(tags=["eu", "gpu"])) == ["both"]

    def test_what_few_can_take_is_taken_first(self, bus: Harness) -> None:
        bus.send(DOMAIN, "render", "any", priority="high")
        bus.send(DOMAIN, "render", "gpu", requires=["gpu"])
        assert take_all(bus, bus.worker(tags=["gpu"])) == ["gpu", "any"]

    def test_what_comes_back_needs_the_tags_again(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "render", requires=["gpu"], delay=60)
        assert bus.get(command_id).requires == ("gpu",)
        bus.advance(61)
        worker = bus.worker(tags=["gpu"])
        assert take_all(bus, bus.worker()) == []
        [received] = bus.call(worker.receive, 1)
        bus.call(worker.release, received)
        assert take_all(bus, bus.worker()) == []
        assert bus.get(command_id).status == "PENDING"
        assert bus.stats().ready == 1
        assert len(bus.call(worker.receive, 1)) == 1

    def test_a_type_may_be_tied_to_workers(self, open_bus: OpenBus) -> None:
        bus = open_bus(affinity={DOMAIN: {"render": ["gpu"]}})
        command_id = bus.send(DOMAIN, "render", "tied")
        bus.send(DOMAIN, "render", "own choice", requires=["big"])
        bus.send(DOMAIN, "ship", "any")
        assert bus.get(command_id).requires == ("gpu",)
        assert take_all(bus, bus.worker()) == ["any"]
        assert take_all(bus, bus.worker(tags=["gpu"])) == ["tied"]
        assert take_all(bus, bus.worker(tags=["big"])) == ["own choice"]

    @pytest.mark.parametrize(
        "affinity", [{DOMAIN: ["gpu"]}, {DOMAIN: {"render": "gpu"}}, {DOMAIN: {"render": ["g p u"]}}]
    )
    def test_a_rule_names_domain_type_and_tags(self, open_bus: OpenBus, affinity: Any) -> None:
        with pytest.raises(ConfigurationError, match="affinity"):
            open_bus(affinity=affinity)

    def test_it_can_be_canceled(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "render", requires=["gpu"])
        assert take_all(bus, bus.worker()) == []
        bus.cancel(command_id)
        assert bus.get(command_id).status == "CANCELED"
        assert take_all(bus, bus.worker(tags=["gpu"])) == []

    def test_a_paused_domain_gives_out_nothing(self, bus: Harness) -> None:
        bus.pause()
        bus.send(DOMAIN, "render", requires=["gpu"])
        worker = bus.worker(tags=["gpu"])
        assert take_all(bus, worker) == []
        bus.resume()
        assert len(bus.call(worker.receive, 1)) == 1

    def test_the_right_worker_is_woken(self, bus: Harness) -> None:
        done: list[str] = []
        registry = registry_of(render=lambda command, context: done.append(context.worker))
        with (
            bus.run_worker(registry) as plain,
            bus.run_worker(registry, tags=["gpu"]) as tagged,
        ):
            plain.wait_until_idle()
            tagged.wait_until_idle()
            for number in range(4):
                bus.send(DOMAIN, "render", number, requires=["gpu"])
                eventually(partial(reached, done, number + 1))
            assert set(done) == {tagged.worker.name}

    def test_tags_hold_together_with_groups_and_limits(self, bus: Harness) -> None:
        set_limit(bus, "render", concurrency=2)
        for number in range(6):
            bus.send(DOMAIN, "render", number, requires=["gpu"], group_key=f"g{number % 3}")
        assert take_all(bus, bus.worker()) == []
        assert take_all(bus, bus.worker(tags=["gpu"])) == [0, 1]

    def test_why_says_that_no_worker_has_them(self, bus: Harness) -> None:
        command_id = bus.send(DOMAIN, "render", requires=["gpu"])
        registry = registry_of(render=lambda command, context: None)
        with bus.run_worker(registry) as running:
            running.wait_until_idle()
            eventually(lambda: bus.call(bus.bus.list_workers))
            answer = bus.call(bus.bus.why, command_id)
        assert "NO_TAGS" in [reason.code for reason in answer.reasons]
        assert "gpu" in answer.summary

    @pytest.mark.parametrize("tags", ["gpu", ["not a name"], [""], [7]])
    def test_required_tags_are_names(self, bus: Harness, tags: Any) -> None:
        with pytest.raises(InvalidArgumentError):
            bus.send(DOMAIN, "render", requires=tags)


class SendersSuite:
    def test_a_sender_that_is_too_fast_is_refused(self, bus: Harness) -> None:
        set_limit(bus, per_sender=True, rate=1, per=60, burst=2)
        for _ in range(2):
            bus.send(DOMAIN, "ship", sender="ann")
        with pytest.raises(RateLimited, match="'ann'") as caught:
            bus.send(DOMAIN, "ship", sender="ann")
        assert 50 < caught.value.retry_after <= 60
        bus.send(DOMAIN, "ship", sender="bob")
        bus.send(DOMAIN, "ship")
        bus.send("others", "ship", sender="ann")
        assert bus.stats().depth == 4
        bus.advance(61)
        bus.send(DOMAIN, "ship", sender="ann")
        assert len(take_all(bus, bus.worker())) == 5

    def test_a_bulk_is_counted_as_a_whole(self, bus: Harness) -> None:
        set_limit(bus, per_sender=True, rate=1, per=60, burst=5)
        send_some(bus, 3, sender="ann")
        with pytest.raises(RateLimited):
            send_some(bus, 3, sender="ann")
        assert bus.stats().depth == 3
        send_some(bus, 2, sender="ann")

    def test_it_is_listed_and_cleared(self, bus: Harness) -> None:
        set_limit(bus, per_sender=True, rate=1, per=60)
        assert list(bus.call(bus.bus.list_limits)) == [
            Limit(DOMAIN, rate=1 / 60, burst=1, per_sender=True)
        ]
        bus.send(DOMAIN, "ship", sender="ann")
        bus.call(bus.bus.clear_limit, DOMAIN, per_sender=True)
        bus.send(DOMAIN, "ship", sender="ann")

    @pytest.mark.parametrize(
        "options", [{"concurrency": 2}, {"rate": 1, "concurrency": 2}, {"rate": 1, "per_key": True}]
    )
    def test_it_is_a_rate_and_nothing_else(self, bus: Harness, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError):
            set_limit(bus, per_sender=True, **options)

    def test_a_sender_is_a_text(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="sender"):
            bus.send(DOMAIN, "ship", sender="")
