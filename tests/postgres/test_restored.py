"""A database that was restored from a dump goes on: docs/store.md says what becomes of each command."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from commandbus import CommandStatus, HandlerRegistry
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.schema import upgrade
from commandbus.sync import SyncCommandBus, SyncHandlerContext, SyncWorker
from commandbus.testing.postgres import create_database
from tests.postgres.database import server
from tests.tidy.project import ROOT

AHEAD = "select setval('commandbus.lease_number', nextval('commandbus.lease_number') + 100000000)"
SECONDS = 30


def program(name: str) -> str:
    folder = server(os.getpid()).binaries.bin_dir
    if folder is None or not (folder / name).exists():
        pytest.skip(f"{name} is not installed beside the server")
    return str(folder / name)


def run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("create", "option"),
    [
        pytest.param(upgrade, "", id="postgres"),
        pytest.param(install, "transport=pgmq", id="pgmq", marks=pytest.mark.pgmq),
    ],
)
def test_a_restored_database_runs_what_had_not_ended_and_forgets_what_came_later(
    tmp_path: Path, create: Callable[[str], object], option: str
) -> None:
    dump, restore = program("pg_dump"), program("pg_restore")
    payments, mail = HandlerRegistry("payments"), HandlerRegistry("mail")
    begun, may_end = threading.Event(), threading.Event()
    runs: list[tuple[str, int]] = []

    @payments.command
    def charge(context: SyncHandlerContext, order: str) -> None:
        runs.append((order, context.fence))
        if order == "running" and not begun.is_set():
            begun.set()
            may_end.wait(SECONDS)

    @mail.command
    def post(context: SyncHandlerContext, to: str) -> None:
        runs.append((to, context.fence))

    def reached(url: str) -> str:
        return f"{url}{'&' if '?' in url else '?'}{option}" if option else url

    original = create_database(server(os.getpid()))
    create(original)
    file = str(tmp_path / "bus.dump")
    with SyncCommandBus(reached(original)) as bus, SyncWorker(bus, payments):
        ended = bus.send(charge(order="ended"))
        bus.wait(ended, timeout=SECONDS)
        waiting = bus.send(post(to="waiting"))
        scheduled = bus.send(post(to="scheduled"), delay=3600)
        running = bus.send(charge(order="running"))
        assert begun.wait(SECONDS)
        run(dump, "--format=custom", f"--file={file}", original)
        may_end.set()
        bus.wait(running, timeout=SECONDS)
        later = bus.send(charge(order="later"))
        bus.wait(later, timeout=SECONDS)
        due = bus.get_command(scheduled).due_at

    known, highest = len(runs), max(fence for _, fence in runs)
    copy = create_database(server(os.getpid()))
    run(restore, "--no-owner", "--exit-on-error", f"--dbname={copy}", file)
    with psycopg.connect(copy, autocommit=True) as connection:
        connection.execute(AHEAD)
    both = HandlerRegistry.union([payments, mail])
    with SyncCommandBus(reached(copy)) as bus, SyncWorker(bus, both):
        for sent in (running, waiting):
            assert bus.wait(sent, timeout=SECONDS).status is CommandStatus.COMPLETED
        assert bus.get_command(ended).status is CommandStatus.COMPLETED
        record = bus.get_command(scheduled)
        assert (record.status, record.due_at) == (CommandStatus.PENDING, due)
        assert bus.get_command(later) is None
        assert bus.get_command(running).crashes == 1
    again = runs[known:]
    assert sorted(order for order, _ in again) == ["running", "waiting"]
    assert min(fence for _, fence in again) > highest


def test_the_documentation_has_the_statement_that_keeps_fences_growing() -> None:
    assert f"{AHEAD};" in (ROOT / "docs" / "store.md").read_text(encoding="utf-8")
