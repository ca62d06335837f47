"""Twenty thousand hostile payloads and names with every test run; `make chaos` sends a million."""

import pytest

from tests.fuzz.flood import flood


@pytest.mark.timeout(120)
@pytest.mark.postgres
def test_a_flood_of_hostile_input_is_kept_as_it_is_or_refused() -> None:
    problems: list[str] = []
    taken, through = flood(20_000, seed=5, problems=problems)
    assert problems == []
    assert taken > 5_000
    assert through >= 1_000
