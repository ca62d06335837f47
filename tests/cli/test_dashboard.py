"""`dashboard`, `dev` and `db prune`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commandbus.interfaces.web import Role
from commandbus.interfaces.web.accounts import read_accounts
from commandbus.sync import SyncCommandBus
from commandbus.testing import eventually
from tests.cli.helpers import PROGRAM, Cli, clean_environment

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def shop() -> str:
    """The file that the tutorial asks for."""
    found = re.search(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A command that serves, and the address it tells."""
    log = folder / "output.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*PROGRAM, *arguments, "--port", "0"],
            cwd=folder,
            env=clean_environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        told = eventually(lambda: re.search(r"http://[\d.]+:\d+", log.read_text()), 30)
        yield process, told[0], log
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def signed_in(log: Path) -> urllib.request.OpenerDirector:
    """A browser that opened the link of the terminal."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    link = eventually(lambda: re.findall(r"http://\S+/sign-in\?token=\S+", log.read_text()), 30)[-1]
    with browser.open(link, timeout=20) as answer:
        assert answer.status == 200
    return browser


def open_url(url: str) -> Any:
    return urllib.request.urlopen(url, timeout=20)


def get(browser: urllib.request.OpenerDirector, url: str) -> Any:
    with browser.open(url, timeout=20) as answer:
        return json.loads(answer.read())


def test_it_does_not_serve_strangers_without_accounts(cli: Cli, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "bus.example"):
        ran = cli("dashboard", "--host", host, "--url", f"sqlite:///{tmp_path}/bus.db", code=2)
        assert "--accounts" in ran.err


def test_a_missing_store_is_reported_before_the_first_request(cli: Cli, tmp_path: Path) -> None:
    assert "There is no file" in cli("dashboard", "--url", f"sqlite:///{tmp_path}/no.db", code=4).err


def test_a_secret_is_hashed_into_an_entry_of_the_file(cli: Cli, tmp_path: Path) -> None:
    ran = cli("dashboard", "--hash-secret", "ana", stdin="correct horse battery\n")
    assert ran.err == ""
    file = tmp_path / "accounts.toml"
    file.write_text(ran.out)
    file.chmod(0o600)
    (ana,) = read_accounts(file)
    assert (ana.name, ana.role) == ("ana", Role.VIEWER)
    assert ana.secret.startswith("scrypt$ln=17,r=8,p=1$")
    fips = ("dashboard", "--algorithm", "pbkdf2", "--hash-secret", "ana")
    assert "pbkdf2-sha256$i=600000$" in cli(*fips, stdin="correct horse battery\n").out
    for weak in ("short", "password1234", "ana-ana-ana-ana"):
        refused = cli("dashboard", "--hash-secret", "ana", stdin=f"{weak}\n", code=2)
        assert "characters" in refused.err or "easy to guess" in refused.err


def test_a_file_without_accounts_is_refused(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "accounts.toml"
    file.touch(0o600)
    for text in ("", "account = []", '[[account]]\nname = "x"\nrole = "king"\n', "not toml ["):
        file.write_text(text)
        ran = cli("dashboard", "--accounts", str(file), "--url", f"sqlite:///{tmp_path}/b.db", code=2)
        assert "holds no accounts" in ran.err


def test_it_serves_a_store(tmp_path: Path) -> None:
    with SyncCommandBus(f"sqlite:///{tmp_path}/bus.db") as bus:
        bus.send("orders", "ship")
    with running(tmp_path, "dashboard", "--url", "sqlite:///bus.db") as (process, address, log):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            open_url(f"{address}/api/v1/overview")
        browser = signed_in(log)
        assert get(browser, f"{address}/api/v1/overview")["domains"][0]["domain"] == "orders"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.slow
def test_the_tutorial_leads_where_it_says(tmp_path: Path) -> None:
    """From an empty folder: a handler, a failure, code that is mended, and a retry."""
    file = tmp_path / "shop.py"
    file.write_text(shop())
    with running(tmp_path, "dev", "shop") as (_, address, log):
        eventually(lambda: "serves orders" in log.read_text(), 30)
        with SyncCommandBus(f"sqlite:///{tmp_path}/commandbus.db") as bus:
            good = bus.send("orders", "ship", {"order": 1, "city": "Oslo"}).command_id
            bad = bus.send("orders", "ship", {"order": 2, "city": "Bergen"}).command_id
            assert bus.wait(good, timeout=30).result == {"parcel": "P-1"}
            assert bus.wait(bad, timeout=30).error_code == "NO_SUCH_CITY"
        browser = signed_in(log)
        overview = get(browser, f"{address}/api/v1/overview")
        assert overview["attention"][0]["text"] == "orders: 1 command waits for an operator"

        file.write_text(shop().replace('"Graz"}', '"Graz", "Bergen"}'))
        os.utime(file, (time.time() + 2, time.time() + 2))
        eventually(lambda: log.read_text().count("serves orders") == 2, 30)
        request = urllib.request.Request(
            f"{address}/api/v1/commands/orders/{bad}/retry",
            data=json.dumps({"reason": "mended"}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with browser.open(request, timeout=20) as answer:
            assert answer.status == 200
        with SyncCommandBus(f"sqlite:///{tmp_path}/commandbus.db") as bus:
            ended = eventually(lambda: (r := bus.wait(bad, timeout=30)).result and r, 30)
            assert ended.result == {"parcel": "P-2"}


def test_old_commands_are_pruned(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bus.db"
    with SyncCommandBus(url) as bus:
        bus.cancel(bus.send("orders", "ship"))
    assert "--completed" in cli("db", "prune", "--url", url, code=2).err
    assert "would prune" in cli("db", "prune", "--canceled", "1d", "--dry-run", "--url", url).err
    kept = cli("db", "prune", "--canceled", "1d", "--yes", "--json", "--url", url)
    assert kept.document == {"gone": 0}


ENDLESS = """

@orders.command
async def pack() -> None:
    import asyncio

    await asyncio.Event().wait()
"""


def test_dev_ends_its_worker_before_itself_and_gives_back_what_runs(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(shop() + ENDLESS)
    with running(tmp_path, "dev", "shop") as (process, _, log):
        with SyncCommandBus(f"sqlite:///{tmp_path}/commandbus.db") as bus:
            (worker,) = eventually(lambda: list(bus.list_workers()), 30)
            sent = bus.send("orders", "pack", {}).command_id
            eventually(lambda: bus.get_command(sent).status == "IN_PROGRESS", 30)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, log.read_text()
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)
    with SyncCommandBus(f"sqlite:///{tmp_path}/commandbus.db") as bus:
        assert bus.get_command(sent).status == "PENDING"
        assert [event.event_type for event in bus.get_audit_trail(sent)][-1] == "RELEASED"
