"""Secrets on the command line: every command that shows records masks them, as the dashboard does."""

import json
from typing import Any

import pytest

from commandbus import Schedule, SendRequest
from commandbus.interfaces.redaction import MASK
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli, finish, park
from tests.cli.test_lists import LISTS, commands, options_of

SECRET = "sk_live_7f3"
WITHOUT_SECRETS = {"workers list", "queue list", "breaker list", "limit list", "context list"}
"""Lists of what carries no payload."""


@pytest.fixture
def shown(cli: Cli, bus: SyncCommandBus) -> dict[str, tuple[str, ...]]:
    """The arguments of every command that shows records, of a store with a secret in each of them."""
    done = finish(bus, {"token": SECRET})
    parked = park(bus, data={"token": SECRET, "city": "Oslo"})
    other = '{"token": "other", "city": "Cork"}'
    edited = park(bus, data={"token": SECRET})
    cli("tsq", "retry", edited, "--data", other, "--reason", "another account")
    batch = bus.create_batch(
        [SendRequest("mail", "Send", {"password": SECRET})], custom_data={"password": SECRET}
    ).batch_id
    first = SendRequest("chained", "Buy", {"token": SECRET}, headers={"authorization": SECRET})
    process = bus.chain(first, SendRequest("chained", "Bill")).process_id
    request: Any = SendRequest(
        "shop", "Buy", {"token": SECRET}, headers={"authorization": SECRET}, tags=(f"token:{SECRET}",)
    )
    bus.put_schedule(Schedule(name="nightly", request=request, every=3_600))
    return {
        "list": (),
        "show": (parked,),
        "watch": (done,),
        "audit": (edited,),
        "tsq list": (),
        "tsq show": (parked,),
        "batch list": (),
        "batch show": (str(batch),),
        "batch commands": (str(batch),),
        "process list": (),
        "process show": (str(process),),
        "process audit": (str(process),),
        "schedule list": (),
        "schedule show": ("nightly",),
    }


def test_every_command_that_shows_records_masks_secrets(
    cli: Cli, shown: dict[str, tuple[str, ...]]
) -> None:
    able = {name for name, command in commands() if "--reveal" in options_of(command)}
    assert able == set(shown)
    assert set(LISTS) - able == WITHOUT_SECRETS
    revealed: set[str] = set()
    for name, arguments in shown.items():
        call = (*name.split(), *arguments)
        for form in ((), ("--json",)):
            ran = cli(*call, *form)
            assert SECRET not in ran.out + ran.err, (name, form)
        revealed |= {name} if SECRET in cli(*call, "--json", "--reveal").out else set()
    assert set(shown) - revealed == {"process audit"}, "nothing of a payload is in its events"
    assert SECRET not in cli("audit", "--json").out
    assert SECRET in cli("audit", "--json", "--reveal").out


def test_the_answer_of_an_action_masks_secrets_and_an_edit_keeps_them(
    cli: Cli, bus: SyncCommandBus, shown: dict[str, tuple[str, ...]]
) -> None:
    answer = cli("schedule", "edit", "nightly", "--every", "2h", "--json")
    assert answer.document["schedule"]["every"] == 7_200
    assert SECRET not in answer.out
    kept = bus.get_schedule("nightly")
    assert kept is not None
    assert kept.schedule.data == {"token": SECRET}
    assert kept.schedule.options is not None
    assert kept.schedule.options.headers == {"authorization": SECRET}


@pytest.mark.usefixtures("terminal")
def test_what_a_person_sees_is_masked_too(cli: Cli, shown: dict[str, tuple[str, ...]]) -> None:
    for name, arguments in shown.items():
        ran = cli(*name.split(), *arguments)
        assert SECRET not in ran.out + ran.err, name
    assert "Oslo" in cli("show", *shown["show"]).out


def test_an_edited_copy_of_what_was_shown_keeps_the_secrets(cli: Cli, bus: SyncCommandBus) -> None:
    parked = park(bus, data={"token": SECRET, "city": "Oslo"})
    seen = cli("show", parked, "--json").document["data"]
    assert seen["token"] == MASK
    moved = json.dumps({"city": seen["token"]})
    assert "belongs elsewhere" in cli("tsq", "retry", parked, "--data", moved, code=2).err
    edited = json.dumps(seen | {"city": "Cork"})
    cli("tsq", "retry", parked, "--data", edited, "--reason", "it moved")
    record = bus.get_command(parked)
    assert record is not None
    assert record.data == {"token": SECRET, "city": "Cork"}
    assert "belongs elsewhere" in cli("send", "shop", "Buy", edited, code=2).err
    again = park(bus, domain="other")
    for form in ((again,), ("--all", "--yes")):
        refused = cli("tsq", "complete", *form, "--result", edited, code=2)
        assert "belongs elsewhere" in refused.err


def test_an_edited_copy_of_a_schedule_keeps_its_secrets(cli: Cli, bus: SyncCommandBus) -> None:
    data = {"token": SECRET, "city": "Oslo"}
    bus.put_schedule(Schedule(name="often", domain="shop", command_type="Buy", every=60, data=data))
    seen = cli("schedule", "show", "often", "--json").document["data"]
    cli("schedule", "edit", "often", "--data", json.dumps(seen | {"city": "Cork"}))
    kept = bus.get_schedule("often")
    assert kept is not None
    assert kept.schedule.data == {"token": SECRET, "city": "Cork"}
