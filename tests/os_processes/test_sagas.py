"""Sagas of real processes that are killed with -9 while they work."""

from pathlib import Path

import pytest

from tests.chaos.sagas import Plan, run

SAGAS = 100


def check(url: str, seed: int) -> None:
    plan = Plan(
        SAGAS,
        kill_every=0.5,
        seconds=100,
        visibility_timeout=2.0,
        batch_size=20,
        seed=seed,
        pause=0.03,
        concurrency=4,
    )
    report = run(url, plan)
    assert not report.violations, report.violations[0]
    assert report.kills > 0, "nobody was killed while they worked"
    finally_ = {status: n for status, n in report.statuses.items() if status.startswith("finally")}
    assert sum(finally_.values()) == SAGAS
    assert finally_["finally COMPLETED"] > SAGAS * 0.8


@pytest.mark.timeout(240)
def test_every_saga_ends_right_on_sqlite(tmp_path: Path) -> None:
    check(f"sqlite:///{tmp_path}/sagas.db", seed=1)


@pytest.mark.postgres
@pytest.mark.timeout(240)
def test_every_saga_ends_right_on_postgres() -> None:
    from tests.postgres.database import empty_url

    check(empty_url(), seed=2)
