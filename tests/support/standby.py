"""A primary and its synchronous standby, on this machine, for fail-overs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from commandbus.testing import postgres
from commandbus.testing.postgres import PostgresServer
from commandbus.testing.waiting import eventually

NAME = "standby"


@dataclass
class Pair:
    primary: PostgresServer
    standby: PostgresServer

    def both(self, url: str) -> str:
        """A database of both servers: whoever of them can be written is used."""
        name = urlsplit(url).path[1:]
        first, second = (urlsplit(s.dsn(name, tcp=True)) for s in (self.primary, self.standby))
        places = f"{first.netloc},{second.netloc.rpartition('@')[2]}"
        return urlunsplit(first._replace(netloc=places)) + "&target_session_attrs=read-write"

    def fail_over(self) -> None:
        """The primary dies without a word, and the standby takes its place."""
        self.primary.kill()
        with psycopg.connect(self.standby.dsn(), autocommit=True) as connection:
            connection.execute("select pg_promote(wait => true)")


@contextlib.contextmanager
def replicated() -> Iterator[Pair]:
    """Commits of the primary are answered when the standby has them, too."""
    with PostgresServer.start(settings={"wal_level": "replica"}) as primary:
        account = postgres._server_account()
        data = postgres._new_folder(account, in_memory=True)
        try:
            with _standby(primary, data) as standby:
                _make_synchronous(primary)
                yield Pair(primary, standby)
        finally:
            shutil.rmtree(data, ignore_errors=True)


def _standby(primary: PostgresServer, data: Path) -> PostgresServer:
    place = f"host={primary._folder} port={primary._port} user=postgres"
    backup: list[str | Path] = [
        primary._bin_dir / "pg_basebackup",
        "-D",
        data,
        "-d",
        place,
        "-c",
        "fast",
    ]
    assert postgres._output(backup, primary._account) is not None, "pg_basebackup failed"
    signal = data / "standby.signal"
    signal.touch()
    postgres._give(signal, primary._account)
    standby = PostgresServer(primary.binaries, data, durable=False)
    standby._password = primary._password
    standby._prepare({"primary_conninfo": f"{place} application_name={NAME}", "hot_standby": "on"})
    standby._launch()
    return standby


def _make_synchronous(primary: PostgresServer) -> None:
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        connection.execute(f"alter system set synchronous_standby_names = '{NAME}'")
        connection.execute("select pg_reload_conf()")

        def is_synchronous() -> bool:
            found = connection.execute("select sync_state from pg_stat_replication").fetchall()
            return found == [("sync",)]

        eventually(is_synchronous, 20)
