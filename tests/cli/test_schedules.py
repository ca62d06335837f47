"""`schedule`: add, look at, switch and forget schedules."""

import pytest

from commandbus import Schedule
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli

NIGHTLY = ("schedule", "add", "nightly", "reports", "Build", '{"kind": "all"}', "--cron", "0 3 * * *")


def test_add_takes_every_option(cli: Cli, bus: SyncCommandBus) -> None:
    options = ("--timezone", "Europe/Berlin", "--misfire", "skip", "--priority", "3", "--disabled")
    document = cli(*NIGHTLY, *options, "--json").document
    assert document["next_run"] is None
    record = bus.get_schedule("nightly")
    assert record is not None
    assert record.schedule == Schedule(
        name="nightly",
        domain="reports",
        command_type="Build",
        data={"kind": "all"},
        cron="0 3 * * *",
        timezone="Europe/Berlin",
        misfire="skip",  # type: ignore[arg-type]
        priority=3,
        enabled=False,
    )


def test_list_shows_the_next_and_the_last_run(cli: Cli, bus: SyncCommandBus) -> None:
    cli(*NIGHTLY)
    cli("schedule", "add", "ping", "mail", "Ping", "--every", "1m", "--disabled")
    nightly, ping = cli("schedule", "list").rows
    assert nightly[:5] == ["nightly", "reports", "Build", "0 3 * * *", "enabled"]
    assert nightly[5].endswith("T03:00:00.000Z")
    assert ping[:7] == ["ping", "mail", "Ping", "every 60 s", "disabled", "", ""]
    assert [row[0] for row in cli("schedule", "list", "--domain", "mail").rows] == ["ping"]


def test_the_document_has_every_key_whatever_is_set(cli: Cli, bus: SyncCommandBus) -> None:
    cli("schedule", "add", "ping", "mail", "Ping", "--every", "60")
    (listed,) = cli("schedule", "list", "--json").document["schedules"]
    assert listed == cli("schedule", "show", "ping", "--json").document
    assert set(listed) == {
        *("name", "domain", "command_type", "data", "cron", "every", "timezone", "misfire"),
        *("overlap", "priority", "options", "enabled", "next_run", "last_run", "last_command_id"),
    }
    assert listed["enabled"] is True


def test_the_table_fits_and_says_what_is_disabled(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    assert "no schedule yet" in cli("schedule", "list").err
    cli(*NIGHTLY, "--timezone", "America/Argentina/Buenos_Aires")
    cli("schedule", "add", "ping", "mail", "Ping", "--every", "90", "--disabled")
    out = cli("schedule", "list").out
    assert "in " in out
    assert "disabled" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_show_names_the_runs_to_come(cli: Cli, bus: SyncCommandBus) -> None:
    cli(*NIGHTLY)
    out = cli("schedule", "show", "nightly").out
    assert out.count("T03:00:00.000Z") == 3
    assert '{"kind":"all"}' in out
    assert "one command stands for all missed runs" in out


def test_one_that_exists_is_replaced_only_with_the_option(cli: Cli, bus: SyncCommandBus) -> None:
    cli(*NIGHTLY)
    assert "--replace" in cli(*NIGHTLY, "--disabled", code=1).err
    cli("schedule", "add", "nightly", "reports", "Other", "--every", "1h", "--replace")
    record = bus.get_schedule("nightly")
    assert record is not None
    assert record.schedule.command_type == "Other"


def test_enable_and_disable(cli: Cli, bus: SyncCommandBus) -> None:
    cli(*NIGHTLY)
    cli("schedule", "disable", "nightly")
    assert cli("schedule", "list").rows[0][4:6] == ["disabled", ""]
    assert "next run in" in cli("schedule", "enable", "nightly").err
    assert cli("schedule", "list").rows[0][4] == "enabled"


def test_trigger_sends_now_and_prints_the_id_alone(cli: Cli, bus: SyncCommandBus) -> None:
    cli(*NIGHTLY, "--disabled")
    record = bus.get_command(cli("schedule", "trigger", "nightly").out.strip())
    assert record is not None
    assert record.data == {"kind": "all"}
    assert record.headers == {"schedule": "nightly"}


def test_delete_needs_a_confirmation(cli: Cli, bus: SyncCommandBus) -> None:
    cli(*NIGHTLY)
    assert "would delete nightly" in cli("schedule", "delete", "nightly", "--dry-run").err
    assert "--yes" in cli("schedule", "delete", "nightly", code=2).err
    assert bus.get_schedule("nightly") is not None
    cli("schedule", "delete", "nightly", "--yes")
    assert not bus.list_schedules()


@pytest.mark.parametrize("verb", ["show", "enable", "disable", "trigger", "delete"])
def test_one_that_does_not_exist_is_not_found(cli: Cli, bus: SyncCommandBus, verb: str) -> None:
    assert "no schedule 'nowhere'" in cli("schedule", verb, "nowhere", code=7).err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "either cron or every"),
        (["--cron", "* * * * *", "--every", "60"], "either cron or every"),
        (["--cron", "61 * * * *"], "not a cron expression"),
        (["--cron", "* * * * *", "--timezone", "Mars/Olympus"], "time zone"),
        (["--every", "soon"], "--every"),
        (["--every", "0.5"], "between 1 second and a year"),
        (["--every", "60", "--misfire", "never"], "misfire must be one of"),
        (["--every", "60", "--priority", "urgent"], "urgent"),
        (["{", "--every", "60"], "not JSON"),
    ],
)
def test_an_invalid_schedule_is_a_usage_error(
    cli: Cli, bus: SyncCommandBus, arguments: list[str], complaint: str
) -> None:
    assert complaint in cli("schedule", "add", "x", "mail", "Ping", *arguments, code=2).err
    assert not bus.list_schedules()


def test_edit_changes_what_is_given_and_keeps_the_rest(cli: Cli, bus: SyncCommandBus) -> None:
    cli(*NIGHTLY, "--timezone", "Europe/Berlin")
    cli("schedule", "edit", "nightly", "--every", "2h", "--overlap", "skip", "--reason", "busy nights")
    record = bus.get_schedule("nightly")
    assert record is not None
    schedule = record.schedule
    assert (schedule.cron, schedule.every, schedule.overlap) == (None, 7200, "skip")
    assert (schedule.data, schedule.timezone) == ({"kind": "all"}, "Europe/Berlin")
    assert bus.list_actions()[0].reason == "busy nights"
    assert (
        "either cron or every"
        in cli("schedule", "edit", "nightly", "--every", "2h", "--cron", "* * * * *", code=2).err
    )
    assert "no schedule" in cli("schedule", "edit", "nowhere", "--every", "2h", code=7).err
