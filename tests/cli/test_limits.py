"""`limit`: set, list and clear limits; and the options that go with them."""

import pytest

from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli


def test_limits_are_set_listed_and_cleared(cli: Cli, bus: SyncCommandBus) -> None:
    cli("limit", "set", "mail", "--type", "newsletter", "--rate", "30", "--per", "1m", "--burst", "2")
    cli("limit", "set", "mail", "--concurrency", "20")
    cli("limit", "set", "mail", "--per-key", "-c", "2")
    cli("limit", "set", "mail", "--per-sender", "--rate", "5")
    assert [row[1] for row in cli("limit", "list").rows] == [
        "the domain", "each group key", "each sender", "newsletter",
    ]  # fmt: skip
    found = cli("limit", "list", "mail", "--json").document["limits"]
    assert [(limit["concurrency"], limit["rate"]) for limit in found] == [
        (20, None), (2, None), (None, 5.0), (None, 0.5),
    ]  # fmt: skip
    cli("limit", "clear", "mail", "--type", "newsletter")
    cli("limit", "clear", "mail", "--per-sender")
    assert len(bus.list_limits()) == 2


def test_setting_can_answer_in_json(cli: Cli, bus: SyncCommandBus) -> None:
    limit = cli("limit", "set", "mail", "--rate", "10", "--json").document
    assert (limit["domain"], limit["rate"], limit["burst"]) == ("mail", 10.0, 4)


@pytest.mark.parametrize(
    "words", [[], ["--rate", "-1"], ["-c", "0"], ["--type", "a", "--per-key", "-c", "1"]]
)
def test_a_bad_limit_is_refused(cli: Cli, bus: SyncCommandBus, words: list[str]) -> None:
    cli("limit", "set", "mail", *words, code=2)
    assert not bus.list_limits()


def test_a_limit_of_nothing_is_refused_with_the_names_of_the_options(
    cli: Cli, bus: SyncCommandBus
) -> None:
    assert "concurrency=, rate= or both" in cli("limit", "set", "mail", code=2).err


def test_a_limit_that_is_not_there_is_not_cleared(cli: Cli, bus: SyncCommandBus) -> None:
    assert "no such limit" in cli("limit", "clear", "mail", code=7).err


def test_a_send_can_name_group_and_required_tags(cli: Cli, bus: SyncCommandBus) -> None:
    cli("send", "video", "render", "--group-key", "film-7", "--requires", "gpu", "--requires", "eu")
    (record,) = bus.query_commands(domain="video")
    assert (record.group_key, record.requires) == ("film-7", ("eu", "gpu"))
