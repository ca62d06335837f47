"""`demo`: ends by itself, everywhere, with nothing lost and a command that works."""

import re
import shlex
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from commandbus import CommandStatus
from commandbus.interfaces.cli import dashboard
from commandbus.interfaces.cli.demo.scene import Scene
from commandbus.interfaces.cli.demo.workload import DOMAINS, expected_ends, plan_commands
from commandbus.sync import SyncCommandBus
from tests.cli.helpers import PROGRAM, Cli, Ran, clean_environment, run, run_on_terminal
from tests.cli.serving import Serving

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def check_summary(ran: Ran) -> str:
    """What every run must say; returns the URL of the store it kept."""
    shown = ANSI.sub("", ran.out)
    assert ran.code == 0, shown + ran.err
    assert "all accounted for" in shown
    for word in ("completed", "failed", "parked", "retries", "tsq list --url"):
        assert word in shown
    found = re.search(r"tsq list --url (\S+)", shown)
    assert found
    (url,) = shlex.split(found.group(1))
    return url


def test_piped_it_writes_lines_and_leaves_a_store_to_look_at(tmp_path: Path) -> None:
    ran = run("demo", "--commands", "300", folder=tmp_path, TMPDIR=str(tmp_path), NO_COLOR="1")
    url = check_summary(ran)
    assert "\x1b" not in ran.out
    assert "was killed" in ran.out
    assert ran.err == ""
    followed = run("tsq", "list", "--url", url, folder=tmp_path)
    assert followed.code == 0
    with SyncCommandBus(url) as bus:
        parked = sum(bus.stats(domain).parked for domain in DOMAINS)
    assert parked == len(followed.rows) > 0


def test_on_a_terminal_it_draws_and_fits(tmp_path: Path) -> None:
    ran = run_on_terminal(
        *("demo", "--commands", "120", "--no-crash", "--url", f"sqlite:///{tmp_path / 'mine.db'}"),
        folder=tmp_path,
        columns=80,
    )
    check_summary(ran)
    assert "━" in ran.out
    lines = ANSI.sub("", ran.out).replace("\r", "").splitlines()
    too_long = [line for line in lines if len(line) > 80 and "--url" not in line]
    assert not [line for line in too_long if "kept in" not in line]
    with SyncCommandBus(f"sqlite:///{tmp_path / 'mine.db'}") as bus:
        assert list(bus.list_domains()) == ["demo-payments", "demo-reports"]


def test_it_serves_its_store_until_it_is_interrupted(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "demo", "-n", "20", "--no-crash", "--serve", "--port", "0"],
        cwd=tmp_path,
        env=clean_environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said = Serving(process).wait_for("dashboard at")
            found = re.search(r"http://127\.0\.0\.1:\d+/sign-in\?token=\S+", said)
            assert found
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            assert opener.open(found.group(), timeout=20).status == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_what_it_cannot_serve_is_an_error_before_it_begins(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "add --serve" in cli("demo", "--port", "9000", code=2).err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = cli("demo", "--serve", "--port", str(taken.getsockname()[1]), code=2)
        assert "choose another --port" in ran.err
        assert ran.out == ""
    monkeypatch.setattr(dashboard, "find_spec", lambda name: None)
    ran = cli("demo", "--serve", code=2)
    assert "durable-commandbus[web]" in ran.err
    assert ran.out == ""


def test_what_takes_too_long_is_a_failure(tmp_path: Path) -> None:
    ran = run("demo", "-n", "100", "--timeout", "300ms", folder=tmp_path, TMPDIR=str(tmp_path))
    assert ran.code == 1
    assert "no outcome in time" in ran.err or "missing" in ran.err


def test_the_same_seed_plans_the_same_fates() -> None:
    one, two = plan_commands(500, 7), plan_commands(500, 7)
    assert [request.data for request in one] == [request.data for request in two]
    ends = expected_ends(one)
    assert ends.total() == 500
    assert set(ends) == {
        CommandStatus.COMPLETED,
        CommandStatus.FAILED,
        CommandStatus.IN_TROUBLESHOOTING_QUEUE,
    }


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_command_is_noticed(bus: SyncCommandBus, url: str, lost: int) -> None:
    planned = plan_commands(10, 1)
    for request in planned:
        request.data.fate.end = "completed"
    scene = Scene(url, list(DOMAINS), planned, crash=False)
    bus.send_many(planned[lost:])
    records = bus.query_commands()
    problems = scene._problems(records)
    assert any("missing" in problem for problem in problems) is bool(lost)
    assert any("no outcome" in problem for problem in problems)
