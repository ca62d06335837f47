"""A part of the sweep with every test run; `python -m tests.failpoints` does all of it."""

from pathlib import Path

import pytest

from commandbus.sync import SyncCommandBus
from tests.failpoints.sweep import attempt, met
from tests.postgres.database import empty_url

CASES = [
    ("sqlite", "before", "commit", "kill"),
    ("sqlite", "after", "commit", "kill"),
    ("sqlite", "after", "insert_lease", "raise"),
    ("sqlite", "before", "insert_outcome", "raise"),
    ("sqlite", "after", "insert_command", "cancel"),
    ("postgres", "after", "claim_plain", "kill"),
    ("postgres", "before", "settle_plain", "kill"),
    ("postgres", "after", "settle", "raise"),
    ("postgres", "after", "claim_plain", "freeze"),
    ("postgres", "after", "insert_commands", "cut"),
    ("postgres", "before", "commit", "cut"),
    ("postgres", "before", "insert_commands", "cancel"),
]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return empty_url()
    url = f"sqlite:///{tmp_path}/points.db"
    with SyncCommandBus(url):
        return url


@pytest.mark.timeout(120)
@pytest.mark.postgres
@pytest.mark.parametrize(
    ("url", "when", "statement", "action"),
    CASES,
    indirect=["url"],
    ids=["-".join(case) for case in CASES],
)
def test_nothing_is_lost_at_a_failpoint(url: str, when: str, statement: str, action: str) -> None:
    result = attempt(url, when, statement, action)  # type: ignore[arg-type]
    assert result.reached, "the failpoint was never met"
    assert result.problems == []


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_a_short_life_meets_every_kind_of_statement(url: str) -> None:
    points = met(url)
    assert len(points) >= 20
    names = {statement for _, statement in points}
    assert {"commit", "begin"} <= names
    assert all(("after", name) in points for when, name in points if when == "before")
