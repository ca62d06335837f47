"""Ids: UUID version 7, in order, from any thread, whatever the clock does."""

from __future__ import annotations

import threading
import time
from uuid import RFC_4122, UUID, uuid4

import pytest

from commandbus.domain import ids
from commandbus.errors import InvalidArgumentError


def test_an_id_is_a_version_7_uuid_with_the_time_in_front() -> None:
    before = time.time_ns() // 1_000_000
    made = ids.new_id()
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, RFC_4122)
    # Ids made in a burst before may have run ahead of the clock by a little.
    assert before <= made.int >> 80 <= after + 1_000


def test_ids_grow_within_one_thread() -> None:
    made = [ids.new_id() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_each_thread_sees_growing_ids_and_no_two_are_equal() -> None:
    found: list[list[UUID]] = []

    def make() -> None:
        found.append([ids.new_id() for _ in range(3_000)])

    threads = [threading.Thread(target=make, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(made == sorted(made) for made in found)
    assert len({one for made in found for one in made}) == 12_000


def test_order_survives_a_clock_that_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ids.new_id()
    monkeypatch.setattr(ids.time, "time_ns", lambda: 1_000_000)
    made = [ids.new_id() for _ in range(5_000)]
    assert [first, *made] == sorted({first, *made})
    assert {one.version for one in made} == {7}


def test_a_new_id_is_a_complete_uuid() -> None:
    made = ids.new_id()
    assert made.is_safe is UUID(int=made.int).is_safe


def test_text_forms_of_ids_are_understood() -> None:
    wanted = uuid4()
    assert ids.as_id(wanted, "x") is wanted
    assert ids.as_id(str(wanted), "x") == wanted
    assert ids.as_id(wanted.hex, "x") == wanted
    assert ids.as_optional_id(None, "x") is None


@pytest.mark.parametrize("wrong", ["", "42", 42, b"x", None, [], "g" * 32])
def test_an_invalid_id_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match="command_id must be a UUID"):
        ids.as_id(wrong, "command_id")


def test_a_refusal_does_not_show_the_values_of_what_was_given() -> None:
    with pytest.raises(InvalidArgumentError, match="not a value of type dict") as refused:
        ids.as_id({"card": "4111"}, "command_id")
    assert "4111" not in str(refused.value)
