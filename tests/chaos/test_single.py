"""Seconds of one kind of fault each, with every test run; `make chaos` does each hundreds of times."""

from pathlib import Path

import pytest

from tests.chaos.experiments import Size, single
from tests.chaos.listening import kill_listeners
from tests.chaos.reliability import Run

SECONDS = 2.0
PATIENCE = 5.0
"""See test_chaos.py."""
LEAST = {
    "kills, postgres": ("kill worker", 5),
    "kills, sqlite": ("kill worker", 5),
    "stops, postgres": ("stop worker", 5),
    "stops, sqlite": ("stop worker", 5),
    "zombies, postgres": ("freeze worker", 3),
    "zombies, sqlite": ("freeze worker", 3),
    "lines, postgres": ("cut before commit", 3),
    "restarts, postgres": ("restart server", 1),
    "kills, pgmq": ("kill worker", 4),
}
COMMANDS = 10
"""A run in which nothing happened would prove nothing. A frozen worker may keep all others from writing
to an SQLite file for seconds, so few commands may go through."""


def run_of(title: str, folder: Path, seconds: float = SECONDS) -> Run:
    size = Size(21, seconds, folder, load=PATIENCE - 1, redelivery=PATIENCE)
    experiments = {one.keywords.get("title"): one for one in single(size)}
    # `make chaos` goes on until thousands have ended.
    run = experiments[title](commands_min=COMMANDS)
    assert isinstance(run, Run)
    return run


@pytest.mark.timeout(180)
@pytest.mark.postgres
@pytest.mark.parametrize("title", LEAST)
def test_one_kind_of_fault_breaks_no_promise(title: str, tmp_path: Path) -> None:
    run = run_of(title, tmp_path)
    fault, least = LEAST[title]
    assert not run.broken, run.text
    assert run.faults[fault] >= least, run.text
    assert run.commands >= COMMANDS, run.text


@pytest.mark.timeout(180)
def test_two_thousand_sends_under_few_keys_leave_one_live_command_each(tmp_path: Path) -> None:
    run = run_of("keys, sqlite", tmp_path, 4.0)
    assert not run.broken, run.text
    assert run.kinds["send under a unique key"] >= 2_000, run.text


@pytest.mark.timeout(180)
@pytest.mark.postgres
def test_workers_whose_listening_connections_are_killed_hear_again() -> None:
    trial = kill_listeners("postgres", seed=21, kills=20)
    assert not trial.broken, trial
    assert trial.faults["kill listener"] >= 20
