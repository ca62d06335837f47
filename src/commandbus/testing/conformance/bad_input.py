"""Bad input: each mistake is a typed error that says what to do, and nothing is changed by it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.retry import RetryPolicy, exponential
from commandbus.errors import CommandBusError, ConfigurationError, InvalidArgumentError
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.harness import DOMAIN, Harness

NAIVE = datetime(2030, 1, 1, 12)  # noqa: DTZ001 - what is refused


class BadInputSuite:
    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("redis://localhost", "Unknown engine"),
            ("jobs.db", "Unknown engine"),
            ("mysql://root:secret@db/x", "mysql://…"),
            ("sqlite://jobs.db", "names no SQLite file"),
            ("sqlite://", "names no SQLite file"),
            ("sqlite:///:memory:", "memory://"),
            ("sqlite:///x.db?mode=ro", "options that SQLite does not know"),
            ("sqlite:///x.db?synchronous=maybe", "options that SQLite does not know"),
        ],
    )
    def test_an_address_that_leads_nowhere_is_refused(self, bus: Harness, url: str, says: str) -> None:
        with pytest.raises(ConfigurationError, match=says) as caught:
            bus.bus_class(url)
        assert "secret" not in str(caught.value)

    def test_a_transport_that_does_not_exist_is_refused(self, bus: Harness) -> None:
        with pytest.raises(ConfigurationError, match="carrier-pigeon"):
            bus.bus_class(bus.configuration.url, transport="carrier-pigeon")

    @pytest.mark.parametrize(
        "name", ["", "1st", "a b", "a/b", "x" * 64, "naïve", 'x"; drop table', "a\0", "a\n", None, 7]
    )
    def test_an_invalid_domain_or_type_is_refused(self, bus: Harness, name: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"domain .* is not a valid name"):
            bus.send(name, "ship")
        with pytest.raises(InvalidArgumentError, match=r"command_type .* is not a valid name"):
            bus.send(DOMAIN, name)
        with pytest.raises(InvalidArgumentError, match=r"domain .* is not a valid name"):
            bus.stats(name)
        assert len(bus.query()) == 0

    def test_the_longest_and_strangest_name_works(self, bus: Harness) -> None:
        for domain in ("x" * 63, "_", "a.b:c-d_e", "order", "select"):
            assert bus.get(bus.send(domain), domain).domain == domain
            assert bus.take(bus.worker(domain)).command.domain == domain

    @pytest.mark.parametrize("argument", ["command_id", "correlation_id", "causation_id"])
    @pytest.mark.parametrize("value", ["not-an-id", 7, b"x" * 16])
    def test_an_id_that_is_none_is_refused(self, bus: Harness, argument: str, value: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=f"{argument} must be a UUID"):
            bus.send(**{argument: value})
        assert len(bus.query()) == 0

    @pytest.mark.parametrize("argument", ["due_at", "expires_at"])
    @pytest.mark.parametrize("value", [NAIVE, "2030-01-01", 1_900_000_000])
    def test_a_moment_without_a_time_zone_is_refused(
        self, bus: Harness, argument: str, value: Any
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=f"{argument}.*time zone"):
            bus.send(**{argument: value})
        assert len(bus.query()) == 0

    @pytest.mark.parametrize("argument", ["created_after", "created_before"])
    def test_a_query_for_a_moment_without_a_time_zone_is_refused(
        self, bus: Harness, argument: str
    ) -> None:
        with pytest.raises(InvalidArgumentError, match="time zone"):
            bus.query(**{argument: NAIVE})

    @pytest.mark.parametrize(
        "delay", [-1, -0.001, float("nan"), float("inf"), "60", True, timedelta(days=-1), 1e12]
    )
    def test_a_delay_that_is_none_is_refused(self, bus: Harness, delay: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="delay must be"):
            bus.send(delay=delay)
        assert len(bus.query()) == 0

    def test_a_delay_and_a_moment_together_are_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="either delay or due_at"):
            bus.send(delay=1, due_at=bus.now)

    @pytest.mark.parametrize("attempts", [0, -1, 1.5, "3", True, 40_000])
    def test_a_number_of_attempts_below_one_is_refused(self, bus: Harness, attempts: Any) -> None:
        with pytest.raises(ConfigurationError, match="max_attempts must be a whole number"):
            bus.send(max_attempts=attempts)
        assert len(bus.query()) == 0

    @pytest.mark.parametrize("key", ["", "x" * 256, "a\0b", "\ud800", 7])
    def test_a_key_that_cannot_be_kept_is_refused(self, bus: Harness, key: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="unique_key"):
            bus.send(unique_key=key)
        assert len(bus.query()) == 0

    @pytest.mark.parametrize("tags", ["vip", [""], ["x" * 101], ["a\0"], [7]])
    def test_tags_that_cannot_be_kept_are_refused(self, bus: Harness, tags: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="tag"):
            bus.send(tags=tags)
        assert len(bus.query()) == 0

    def test_headers_that_are_not_a_dict_are_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="headers must be a dict"):
            bus.send(headers=[("a", 1)])

    def test_an_invalid_reply_address_is_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="reply_to"):
            bus.send(reply_to="not a queue")

    @pytest.mark.parametrize("request_", [{"domain": "orders"}, None, "ship"])
    def test_a_bulk_send_of_something_else_is_refused(self, bus: Harness, request_: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="SendRequest"):
            bus.send_many([SendRequest(DOMAIN, "ship"), request_])
        assert len(bus.query()) == 0

    @pytest.mark.parametrize("reason", ["", "x" * 501, "\0", 7])
    def test_a_reason_that_cannot_be_kept_is_refused(self, bus: Harness, reason: Any) -> None:
        command_id = bus.send()
        with pytest.raises(InvalidArgumentError, match="reason"):
            bus.cancel(command_id, reason)
        assert bus.stats().ready == 1

    def test_settings_that_do_not_exist_are_refused(self, open_bus: OpenBus) -> None:
        with pytest.raises((TypeError, CommandBusError), match="colour"):
            open_bus(colour="blue")

    def test_wrong_settings_are_named_all_at_once(self, open_bus: OpenBus) -> None:
        with pytest.raises(ConfigurationError, match=r"max_pending.*payload_bytes.*max_attempts"):
            open_bus(max_pending=0, payload_bytes_max=-1, max_attempts=0)

    @pytest.mark.parametrize(
        "option",
        [
            {"visibility_timeout": 0},
            {"visibility_timeout": -1},
            {"prefetch": -1},
            {"jitter": -1},
            {"shutdown_timeout": float("nan")},
            {"name": "not a name"},
        ],
        ids=str,
    )
    def test_a_worker_that_cannot_work_is_refused(self, bus: Harness, option: dict[str, Any]) -> None:
        with pytest.raises(CommandBusError, match=next(iter(option))):
            bus.worker(**option)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: RetryPolicy(max_attempts=0),
            lambda: RetryPolicy(jitter=2),
            lambda: RetryPolicy(backoff_schedule="10"),  # type: ignore[arg-type]
            lambda: RetryPolicy(backoff_schedule=[-1]),
            lambda: exponential(factor=0.5),
        ],
    )
    def test_a_retry_policy_that_makes_no_sense_is_refused(self, make: Any) -> None:
        with pytest.raises(CommandBusError):
            make()
