"""What people do on the command line is among what people did, with their names."""

from collections.abc import Iterator

import pytest

from commandbus import BusinessRuleException, SendRequest
from commandbus.sync import SyncCommandBus
from commandbus.testing.harness import Configuration
from commandbus.testing.sagas import BookTrip, Sagas
from tests.cli.helpers import Cli


@pytest.fixture
def sagas(url: str) -> Iterator[Sagas]:
    harness = Configuration("sqlite", url).open("threads")
    yield Sagas(harness, BookTrip)
    harness.close()


def done(cli: Cli) -> list[list[str]]:
    """Who did what to what, the first first."""
    return [row[1:4] for row in cli("audit", "--people").rows][::-1]


def test_changes_of_schedules_are_kept(cli: Cli, bus: SyncCommandBus) -> None:
    as_ann = ("--operator", "ann")
    cli("schedule", "add", "nightly", "reports", "Build", "--every", "1h", *as_ann)
    for change in ("disable", "enable", "trigger"):
        cli("schedule", change, "nightly", *as_ann)
    cli("schedule", "delete", "nightly", "--yes", *as_ann)
    verbs = ("put", "disable", "enable", "trigger", "delete")
    assert done(cli) == [["ann", f"{verb}_schedule", "nightly"] for verb in verbs]


def test_limits_are_kept(cli: Cli, bus: SyncCommandBus) -> None:
    cli("limit", "set", "mail", "--type", "digest", "--rate", "5", "--operator", "ann")
    cli("limit", "clear", "mail", "--type", "digest", "--operator", "ben")
    assert done(cli) == [
        ["ann", "set_limit", "5 per second of type 'digest' in domain 'mail'"],
        ["ben", "clear_limit", "mail, digest"],
    ]


def test_a_batch_that_is_canceled_is_kept(cli: Cli, bus: SyncCommandBus) -> None:
    batch = bus.create_batch([SendRequest("shop", "Buy")]).batch_id
    cli("batch", "cancel", str(batch), "--yes", "--operator", "ann")
    assert done(cli) == [["ann", "cancel_batch", str(batch)]]


def test_what_is_done_about_processes_is_kept(cli: Cli, sagas: Sagas) -> None:
    stuck, called_off = str(sagas.start()), str(sagas.start())
    cli("process", "cancel", called_off, "--yes", "--operator", "ann")
    sagas.done("book_hotel", "Grand")
    sagas.done("book_car", BusinessRuleException("NO"))
    for verb in ("retry", "skip"):
        sagas.done("cancel_hotel", BusinessRuleException("NO"))
        reason = ("--reason", "by phone") if verb == "skip" else ()
        cli("process", verb, stuck, *reason, "--operator", "ben")
        sagas.route()
    assert done(cli) == [
        ["ann", "cancel_process", called_off],
        ["ben", "retry_process", stuck],
        ["ben", "skip_compensation", stuck],
    ]
