"""Results of bulk sends of very many commands are small, and read like a list."""

from __future__ import annotations

import tracemalloc

import pytest

from commandbus.domain.command import SendResult
from commandbus.domain.ids import new_id
from commandbus.domain.send_results import SendResults

COUNT = 20_000


def filled(*parts: list[SendResult]) -> SendResults:
    results: SendResults = SendResults()
    for part in parts:
        results.add(part)
    return results


def test_results_are_those_that_were_added_in_order() -> None:
    some = [SendResult(new_id(), "orders"), SendResult(new_id(), "billing", duplicate=True)]
    more = [SendResult(new_id(), "orders")]
    results = filled(some, more)
    assert list(results) == [*some, *more]
    assert (len(results), results[1], results[-1]) == (3, some[1], more[0])
    assert results[1:] == [some[1], *more]
    assert more[0] in results
    with pytest.raises(IndexError):
        results[3]


def test_no_results_are_none() -> None:
    assert list(filled()) == []
    assert not filled([])


def test_a_result_takes_a_few_bytes() -> None:
    results: SendResults = SendResults()
    tracemalloc.start()
    try:
        for _ in range(COUNT // 1_000):
            results.add([SendResult(new_id(), "orders") for _ in range(1_000)])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(results) == COUNT
    assert kept < 40 * COUNT
