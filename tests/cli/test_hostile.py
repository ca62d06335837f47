"""Data of strangers never steers the terminal, breaks a row, or is taken for markup."""

import json

import pytest

from commandbus import Schedule, SendRequest
from commandbus.interfaces.cli import output, text
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import Cli, park

HOSTILE = [
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[31mred",
    "\x9b31m C1",
    "[bold red]markup[/bold red]",
    "[/]",
    "[link=http://evil]x[/link]",
    ":warning:",
    "tab\tnewline\nreturn\rend",
    "\u202egnp.exe",
    "\u2066isolate\u2069",
    "zero\u200bwidth",
    "line\u2028separator",
    "\x7f\x08\x08",
    "\U000e0041tag",
    "back\\slash",
]
FORBIDDEN = set("\x1b\x9b\x07\x08\x7f\r\u202e\u2066\u2069\u200b\u2028\U000e0041")


def check_harmless(shown: str) -> None:
    found = FORBIDDEN & set(shown)
    assert not found, f"{found!r} reached the output: {shown!r}"


@pytest.mark.parametrize("terminal", [False, True])
def test_every_command_shows_it_harmlessly(
    cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream=None: terminal)
    monkeypatch.setenv("COLUMNS", "200")
    everything = " ".join(HOSTILE)
    parked = park(
        bus,
        code=everything[:90],
        message=everything,
        data={hostile: [hostile] for hostile in HOSTILE},
        tags=HOSTILE,
        headers={hostile: hostile for hostile in HOSTILE},
        unique_key=everything,
    )
    bus.acting(everything).pause("shop", everything)
    bus.acting(everything).open_breaker("visa", reason=everything)
    data = {hostile: [hostile] for hostile in HOSTILE}
    bus.put_schedule(Schedule(name="s", domain="shop", command_type="Buy", data=data, every=60))
    batch = str(
        bus.create_batch([SendRequest("shop", "Buy")], name=everything, custom_data=data).batch_id
    )
    for command in (
        ["breaker", "list"],
        ["schedule", "list"],
        ["schedule", "show", "s"],
        ["schedule", "show", everything],
        ["schedule", "add", "x", "shop", "Buy", "--cron", everything],
        ["batch", "list"],
        ["batch", "show", batch],
        ["batch", "show", everything],
        ["load", "--mix", everything],
        ["tsq", "retry", "--all", "--dry-run"],
        ["list"],
        ["show", parked],
        ["audit", parked],
        ["watch", parked],
        ["tsq", "list"],
        ["tsq", "list", "--groups"],
        ["queue", "stats", "shop"],
        ["tsq", "retry", parked, "--dry-run"],
        ["list", "--status", everything],
        ["send", "shop", "Buy", everything],
        ["send", "shop", everything],
        ["show", everything],
        ["worker", everything],
        ["list", "--url", f"sqlite:///{everything}"],
    ):
        ran = cli(*command, code=None)
        check_harmless(ran.out)
        check_harmless(ran.err)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_each_is_escaped_and_json_is_equal_when_parsed(hostile: str) -> None:
    check_harmless(text.line(hostile))
    check_harmless(text.block(hostile))
    assert "\n" not in text.line(hostile)
    document = text.as_json({hostile: hostile})
    check_harmless(document)
    assert json.loads(document) == {hostile: hostile}


def test_a_document_is_harmless_and_complete(cli: Cli, bus: SyncCommandBus) -> None:
    data = {hostile: hostile for hostile in HOSTILE}
    ran = cli("show", park(bus, data=data, tags=HOSTILE), "--json")
    check_harmless(ran.out)
    assert ran.document["data"] == data
    assert ran.document["tags"] == HOSTILE


def test_a_row_of_tsv_stays_a_row(cli: Cli, bus: SyncCommandBus) -> None:
    park(bus, message="one\ttwo\nthree")
    (row,) = cli("tsq", "list").rows
    assert "one\\ttwo\\nthree" in row


def test_markup_is_shown_as_it_is(cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("COLUMNS", "200")
    parked = park(bus, message="[bold]not bold[/bold] :smile:")
    for command in (["tsq", "list"], ["show", parked]):
        assert "[bold]not bold[/bold] :smile:" in cli(*command).out


def test_ordinary_text_is_not_escaped() -> None:
    for ordinary in ("Grüße, 世界 🎉", "naïve – “quoted” …", "a/b\\c", "Ελληνικά עברית"):
        assert text.line(ordinary) == ordinary
        assert json.loads(text.as_json(ordinary)) == ordinary


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("90", 90),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("5m", 300),
        ("2h", 7200),
        ("3d", 259200),
        (" .5 s ", 0.5),
    ],
)
def test_durations(given: str, seconds: float) -> None:
    assert text.parse_duration(given, "--delay") == pytest.approx(seconds)


@pytest.mark.parametrize("given", ["", "-1", "1y", "s", "1 2", "nan", "1e9x"])
def test_what_is_no_duration(given: str) -> None:
    with pytest.raises(ValueError, match="--delay"):
        text.parse_duration(given, "--delay")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (0.004, "4 ms"),
        (0.4, "0.4 s"),
        (42, "42 s"),
        (600, "10 min"),
        (7300, "2 h"),
        (1e6, "12 d"),
    ],
)
def test_lengths_of_time_are_short(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown
