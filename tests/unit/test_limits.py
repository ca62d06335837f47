"""The arithmetic of limits: token buckets, gates and their order."""

from __future__ import annotations

from typing import Any

import pytest

from commandbus.domain.limits import (
    CONCURRENCY_MAX,
    PASS_MAX,
    RATE_MAX,
    Grant,
    Limit,
    first_gate,
    gate_after,
    grant,
    in_passing_order,
    limit_at,
    limit_of_gate,
    make_limit,
    make_rate,
    partition_of,
    take,
    tokens,
)
from commandbus.domain.moment import SECOND
from commandbus.errors import InvalidArgumentError

NOW = 1_000 * SECOND


def made(**options: Any) -> Limit:
    fields = {"command_type": None, "per_key": False, "concurrency": None, "rate": None}
    return make_limit("orders", **{**fields, "per": 1.0, "burst": None, **options})


def test_a_limit_at_its_bounds_is_accepted() -> None:
    for concurrency in (1, CONCURRENCY_MAX):
        assert made(concurrency=concurrency).concurrency == concurrency
    assert made(rate=RATE_MAX).rate == RATE_MAX
    assert made(rate=1, burst=CONCURRENCY_MAX).burst == CONCURRENCY_MAX


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, "needs concurrency="),
        ({"concurrency": 0}, "concurrency must be a whole number from 1"),
        ({"concurrency": CONCURRENCY_MAX + 1}, "concurrency must be a whole number from 1"),
        ({"concurrency": True}, "concurrency must be a whole number from 1"),
        ({"concurrency": 1.5}, "concurrency must be a whole number from 1"),
        ({"concurrency": 2, "burst": 3}, "burst belongs to a rate"),
        ({"rate": 0}, "rate must be a number above 0"),
        ({"rate": True}, "rate must be a number above 0"),
        ({"rate": "5"}, "rate must be a number above 0"),
        ({"rate": RATE_MAX + 1}, "rate must be a number above 0"),
        ({"rate": 5, "per": 0}, "per must be a time above 0"),
        ({"rate": 5, "burst": 0}, "burst must be a whole number"),
        ({"rate": 5, "burst": CONCURRENCY_MAX + 1}, "burst must be a whole number"),
        ({"rate": 5, "burst": True}, "burst must be a whole number"),
        ({"concurrency": 1, "command_type": "ship", "per_key": True}, "only one of these"),
        ({"concurrency": 1, "rate": 1, "per_sender": True}, "per sender needs rate="),
    ],
)
def test_a_wrong_limit_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        made(**wrong)


def test_a_bucket_collects_the_tokens_of_four_tenths_of_a_second() -> None:
    assert make_rate(100, 1.0, None) == (100.0, 40)
    assert make_rate(60, 60.0, None) == (1.0, 1)
    assert make_rate(100, 1.0, 7) == (100.0, 7)


@pytest.mark.parametrize(
    "limit",
    [
        Limit("orders", concurrency=3),
        Limit("orders", "ship", rate=2.0, burst=4),
        Limit("orders", per_key=True, concurrency=1),
        Limit("orders", per_sender=True, rate=1.0),
    ],
)
def test_the_name_of_its_gate_says_what_a_limit_is_about(limit: Limit) -> None:
    stored = limit_of_gate("orders", limit.gate, limit.concurrency, limit.rate, limit.burst)
    assert stored == limit


def test_gates_are_passed_from_the_group_to_the_type_to_the_domain() -> None:
    gates = ["d", "t:ship", "k"]
    assert first_gate(gates, "ship", "customer-1", None) == "k:customer-1"
    assert gate_after(gates, "ship", "k:customer-1") == "t:ship"
    assert gate_after(gates, "ship", "t:ship") == "d"
    assert gate_after(gates, "ship", "d") is None
    assert first_gate(gates, "bill", None, None) == "d"
    assert first_gate(["k"], "ship", None, "gpu") == "r"
    assert first_gate(["k"], "ship", None, None) is None
    assert in_passing_order(["d", "t:ship", "k:customer-1", "r"]) == [
        "k:customer-1",
        "t:ship",
        "d",
        "r",
    ]


def test_a_group_without_a_limit_runs_one_at_a_time() -> None:
    assert limit_at({}, "orders", "k:customer-1").concurrency == 1
    assert limit_at({"k": made(per_key=True, rate=5)}, "orders", "k:customer-1").concurrency == 1
    assert limit_at({"k": made(per_key=True, concurrency=3)}, "orders", "k:a").concurrency == 3
    assert limit_at({}, "orders", "t:ship") == Limit("orders")


def test_a_bucket_fills_with_time() -> None:
    assert tokens(10.0, 5, NOW, NOW) == 5
    assert tokens(10.0, 5, NOW + SECOND // 10, NOW) == 4
    assert tokens(10.0, 5, NOW + SECOND // 2, NOW) == 0
    assert tokens(10.0, 5, NOW + 1, NOW) == 5, "a microsecond of rounding costs no token"


def test_a_sender_takes_all_tokens_or_none() -> None:
    limit = Limit("orders", rate=10.0, burst=5, per_sender=True)
    assert take(limit, 0, NOW, 5) == (NOW + SECOND // 2, 0.0)
    assert take(limit, NOW + SECOND // 5, NOW, 3) == (NOW + SECOND // 2, 0.0)
    assert take(limit, NOW + SECOND // 5, NOW, 4) == (NOW + SECOND // 5, pytest.approx(0.1))
    assert take(limit, 0, NOW, 50) == (NOW + SECOND // 2, 0.0), "more than the bucket takes a full one"


def test_a_gate_lets_pass_what_has_room() -> None:
    limit = Limit("orders", concurrency=3)
    assert grant(limit, 1, 0, NOW, 5) == Grant(2, 0)
    assert grant(limit, 1, 0, NOW, 1) == Grant(1, 0)
    assert grant(limit, 4, 0, NOW, 5) == Grant(0, 0)
    assert grant(Limit("orders"), 0, 0, NOW, PASS_MAX) == Grant(PASS_MAX, 0)
    assert grant(Limit("orders"), 0, 0, NOW, PASS_MAX + 1) == Grant(PASS_MAX, 0, NOW)


def test_a_gate_with_a_rate_says_when_to_ask_again() -> None:
    limit = Limit("orders", rate=10.0, burst=2)
    assert grant(limit, 0, 0, NOW, 2) == Grant(2, NOW + SECOND // 5)
    assert grant(limit, 0, 0, NOW, 3) == Grant(2, NOW + SECOND // 5, NOW + SECOND // 10)
    fast = Limit("orders", rate=100.0, burst=40)
    later = grant(fast, 0, NOW + 2 * SECOND // 5, NOW, 9)
    assert later == Grant(0, NOW + 2 * SECOND // 5, NOW + SECOND // 20), "several tokens at once"


def test_commands_that_require_tags_lie_apart() -> None:
    assert partition_of("orders", None) == "orders"
    assert partition_of("orders", "gpu") == "orders#gpu"


@pytest.mark.parametrize(
    ("rate", "per", "words"),
    [(5, 1, "5 per second"), (100, 3_600, "100 per hour"), (10, 60, "10 per minute"),
     (1, 3_600, "1 per hour"), (3, 86_400, "3 per day"), (0.5, 1, "30 per minute"),
     (1.7, 1, "102 per minute")],
)  # fmt: skip
def test_a_rate_is_shown_per_unit_in_which_one_starts(rate: float, per: float, words: str) -> None:
    assert str(made(rate=rate, per=per)).startswith(words)
