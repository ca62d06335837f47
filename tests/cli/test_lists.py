"""What all lists share: columns, order, time, and looking again."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer

from commandbus import SendRequest
from commandbus.domain.page import Page
from commandbus.errors import StoreUnavailable
from commandbus.interfaces.cli import lists
from commandbus.interfaces.cli.app import GROUPS, SECTIONS, app
from commandbus.interfaces.cli.lists import Look, read_page
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import PROGRAM, Cli, clean_environment, park

LISTS = (
    "list",
    "audit",
    "workers list",
    "batch list",
    "batch commands",
    "process list",
    "process audit",
    "schedule list",
    "queue list",
    "tsq list",
    "breaker list",
    "limit list",
    "context list",
)
TIMELESS = ("queue list", "limit list", "context list")

SERVING = {"demo", "dev", "worker", "dashboard", "process route", "version", "db sql", "db roles"}
"""Commands that serve until a signal, show, or print statements, and so have no result."""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the tree."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("commandbus", [], resilient_parsing=True)
    for name in (name for section in SECTIONS.values() for name in section):
        found = root.get_command(context, name)
        if name in GROUPS:
            yield from ((f"{name} {part}", one) for part, one in found.commands.items())
        else:
            yield name, found


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_every_list_takes_columns_order_and_time_and_looks_again() -> None:
    found = dict(commands())
    for name in LISTS:
        wanted = {"--columns", "--sort", "--watch", "--json"}
        wanted |= set() if name in TIMELESS else {"--since", "--until"}
        assert wanted <= options_of(found[name]), name
    named_list = {name for name in found if name.split()[-1] == "list"}
    assert named_list <= set(LISTS)


def test_every_command_with_a_result_prints_it_as_json() -> None:
    without = {name for name, command in commands() if "--json" not in options_of(command)}
    assert without == SERVING


def test_rows_are_sorted_by_columns_and_empty_ones_come_last(cli: Cli, bus: SyncCommandBus) -> None:
    park(bus, domain="b", code="X")
    park(bus, domain="a", code="Y")
    bus.send("c", "Buy")
    by_domain = cli("list", "--sort", "domain", "--columns", "domain").rows
    assert by_domain == [["a"], ["b"], ["c"]]
    by_error = cli("list", "--sort", "-error,domain", "--columns", "domain,error").rows
    assert by_error == [["a", "Y"], ["b", "X"], ["c", ""]]
    document = cli("list", "--sort", "-domain", "--json").document
    assert [one["domain"] for one in document["commands"]] == ["c", "b", "a"]
    assert document["sort"] == {"by": "-domain", "of": "all"}


def test_numbers_are_sorted_as_numbers(cli: Cli, bus: SyncCommandBus) -> None:
    for domain, rate in (("a", 9), ("b", 10), ("c", 100)):
        bus.set_limit(domain, rate=rate)
    rows = cli("limit", "list", "--sort", "-rate", "--columns", "domain").rows
    assert rows == [["c"], ["b"], ["a"]]


def test_an_unknown_column_is_named(cli: Cli, bus: SyncCommandBus) -> None:
    bus.send("shop", "Buy")
    assert "no column 'nope' to sort by; use id, domain" in cli("list", "--sort", "nope", code=2).err
    assert "no column 'nope'; use domain" in cli("queue", "list", "--columns", "nope", code=2).err


def test_of_a_page_that_is_not_all_only_the_page_is_sorted(cli: Cli, bus: SyncCommandBus) -> None:
    for domain in ("a", "b", "c"):
        bus.send(domain, "Buy")
    ran = cli("list", "-n", "2", "--sort", "domain", "--columns", "domain")
    assert ran.rows == [["b"], ["c"]]  # the two newest
    assert "only the 2 shown are sorted" in ran.err
    in_order = cli("list", "-n", "2", "--sort", "-created", "--columns", "domain")
    assert in_order.rows == [["c"], ["b"]]
    assert "sorted" not in in_order.err  # the store has this order itself
    assert cli("list", "-n", "2", "--sort", "domain", "--json").document["sort"]["of"] == "page"


def test_lists_are_bounded_in_time(cli: Cli, bus: SyncCommandBus) -> None:
    park(bus)
    bus.pause("shop", "stock count")
    bus.create_batch([SendRequest("shop", "Buy")])
    for name in ("list", "tsq list", "audit", "audit --people", "batch list"):
        assert cli(*name.split(), "--since", "1h").rows, name
        assert not cli(*name.split(), "--until", "1h").rows, name
        assert cli(*name.split(), "--until", "2100-01-01T00:00Z").rows, name
        assert not cli(*name.split(), "--since", "2100-01-01T00:00Z").rows, name


MOMENTS = [datetime(2030, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in range(2000)][::-1]
"""Newest first."""


@pytest.mark.parametrize("ordered", [True, False])
def test_a_page_between_two_moments_neither_repeats_nor_skips(ordered: bool) -> None:
    def fetch(*, after: str | None, limit: int) -> Page[datetime]:
        begin = int(after or 0)
        rows = MOMENTS[begin : begin + limit]
        return Page(rows, str(begin + limit) if begin + limit < len(MOMENTS) else None)

    since, until = MOMENTS[1500], MOMENTS[700]
    seen: list[datetime] = []
    after: str | None = None
    while True:
        look = Look(None, since, until, 90, after)  # type: ignore[arg-type]
        page = read_page(look, fetch, lambda moment: moment, ordered=ordered)
        seen += page
        after = page.next
        if after is None:
            break
    assert seen == [moment for moment in MOMENTS if since <= moment < until]


def test_rare_matches_are_read_in_large_pieces_also_when_the_page_is_nearly_full() -> None:
    """Batches are not in order of time: between two that match may be thousands that do not."""
    reads: list[int] = []
    mixed = [MOMENTS[0] if n % 400 == 0 else MOMENTS[-1] for n in range(4_000)]

    def fetch(*, after: str | None, limit: int) -> Page[datetime]:
        reads.append(limit)
        begin = int(after or 0)
        return Page(mixed[begin : begin + limit], str(begin + limit) if begin + limit < 4_000 else None)

    look = Look(None, MOMENTS[10], None, 6)  # type: ignore[arg-type]
    page = read_page(look, fetch, lambda moment: moment, ordered=False)
    assert (list(page), page.next) == ([MOMENTS[0]] * 6, "2001")
    assert len(reads) <= 2_001 / 500 + 2, reads


def watching(url: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        env=clean_environment() | {"COMMANDBUS_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_a_watched_list_is_a_line_of_json_per_look_and_ctrl_c_is_no_failure(
    url: str, bus: SyncCommandBus
) -> None:
    bus.send("shop", "Buy")
    with watching(url, "list", "--watch", "0.1", "--json") as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        bus.send("shop", "Buy")
        while len(looks[-1]["commands"]) != 2:
            looks.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert len(looks[0]["commands"]) == 1


def looks_of(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Ctrl-C comes after so many looks."""
    left = iter(range(looks - 1))

    def sleep(seconds: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(lists.time, "sleep", sleep)


def test_a_watched_list_is_printed_again_in_a_pipe(
    cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.send("shop", "Buy")
    looks_of(monkeypatch, 3)
    assert cli("queue", "list", "--watch", "--columns", "domain").out == "domain\nshop\n\n" * 3


def test_a_store_that_is_away_does_not_end_a_watched_list(
    cli: Cli, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.send("shop", "Buy")
    looks_of(monkeypatch, 3)
    answers: list[Any] = [["shop"], StoreUnavailable("The store is away."), ["shop"]]

    def list_domains(*_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(SyncCommandBus, "list_domains", list_domains)
    ran = cli("queue", "list", "--watch", "1s", "--columns", "domain")
    assert ran.out == "domain\nshop\n\n" * 2
    assert "! The store is away." in ran.err


def test_a_watched_list_is_drawn_in_place_on_a_terminal(
    cli: Cli, bus: SyncCommandBus, terminal: pytest.MonkeyPatch
) -> None:
    bus.send("shop", "Buy")
    looks_of(terminal, 2)
    out = cli("list", "--watch=1s").out
    assert "Ctrl-C ends" in out
    assert "Buy" in out


def test_watch_takes_a_time(cli: Cli, bus: SyncCommandBus) -> None:
    assert "--watch must be a duration" in cli("queue", "list", "--watch=x", code=2).err
    assert "0.1 seconds or more" in cli("queue", "list", "--watch", "0", code=2).err
