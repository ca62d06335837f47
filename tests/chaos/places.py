"""Where the laboratory takes place: a store, and the harm that can be done to it."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psycopg

from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.schema import upgrade
from commandbus.testing import postgres
from commandbus.testing.postgres import PostgresServer, PostgresUnavailable, create_database
from tests.support.pgbouncer import Pooler
from tests.support.proxy import Proxy, Trap
from tests.support.standby import Pair, replicated


class Place:
    """One store. `url` is for the processes, `own_url` for the laboratory, which is spared."""

    name = ""
    option = ""
    """What a bus needs in its address beyond that of the database."""
    transactional = False
    """Whether handlers can have a transaction."""
    poll_interval = 30.0
    """Of workers: so long that nothing is found by polling where they are told of it."""
    skews = False
    """Whether the clocks of workers may be wrong: not where they are the store's clock."""
    touches_sessions = False
    """Whether handlers change settings of their session: not behind a pooler, which shares it."""
    in_sequence = True
    """See `Terms.in_sequence`."""
    one_writer = False
    """See `Terms.one_writer`."""
    has_gates = True
    """Whether groups and limits exist: PGMQ has none."""
    outage_seconds = (6.0, 12.0)
    """How long an outage of the server lasts: longer than a pool tries to connect at once."""

    def __init__(self) -> None:
        self.url = self.own_url = ""
        self.callers_url = ""
        """For senders' own connections, where it is another."""
        self.faults: dict[str, float] = {}
        """What can be done to the store, and how often in proportion."""
        self.certain: str | None = None
        """A fault without which a stay proves little: it is done half-way at the latest."""
        self.spared: Counter[str] = Counter()
        """Harm that was prepared and never done, for nothing came by."""
        self.missing: list[str] = []
        """What cannot be done on this machine, and why."""
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self._disk: Path | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.mend(all_of_them=True)
        self._stack.close()

    def _build(self) -> None:
        """Make the store."""

    @property
    def bus_url(self) -> str:
        """For the laboratory's own bus."""
        return f"{self.own_url}{self.option}"

    def effects(self) -> tuple[tuple[str, int], ...]:
        """What handlers have done in their transactions."""
        if not self.transactional:
            return ()
        with psycopg.connect(self.own_url) as connection:
            found = connection.execute("select id, fence from effect").fetchall()
        return tuple((str(command_id), int(token)) for command_id, token in found)

    def _prepare(self, url: str) -> None:
        """The schema, a table for effects without any rule that would hide a double, and a role that a
        handler may take on."""
        self._install(url)
        with psycopg.connect(url) as connection:
            connection.execute("create table effect (id text not null, fence bigint not null)")
            connection.execute("create role tenant superuser")

    def _install(self, url: str) -> None:
        upgrade(url)

    def harm(self, fault: str, chance: random.Random) -> None:
        getattr(self, "_" + fault.replace(" ", "_").replace("-", "_"))(chance)

    def mend(self, *, all_of_them: bool = False) -> None:
        """End what has lasted long enough."""
        now = time.monotonic()
        for entry in list(self._undo):
            if all_of_them or entry[0] <= now:
                self._undo.remove(entry)
                entry[1]()

    @property
    def is_harmed(self) -> bool:
        """Something lasts that `mend` will end."""
        return bool(self._undo)

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._undo.append((time.monotonic() + seconds, undo))

    def _small_disk(self, megabytes: int) -> Path | None:
        """A folder that can be filled up, where this user may mount one."""
        folder = postgres._new_folder(postgres._server_account())
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        disk = folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(disk)]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
            self.missing.append("disk full: this user may not mount a small disk")
            return None
        self._stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=False)
        self.faults["disk full"] = 0.5
        self._disk = disk
        return disk

    def _disk_full(self, chance: random.Random) -> None:
        assert self._disk is not None
        with contextlib.suppress(OSError), (self._disk / "ballast").open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
        self._later(chance.uniform(0.5, 1.5), self._make_room)

    def _make_room(self) -> None:
        if self._disk is not None:
            (self._disk / "ballast").unlink(missing_ok=True)


class SQLitePlace(Place):
    name = "sqlite"
    one_writer = True

    def __init__(self, folder: Path, *, rough: bool) -> None:
        super().__init__()
        self._folder, self._rough = folder, rough

    def _build(self) -> None:
        disk = (self._small_disk(96) if self._rough else None) or self._folder
        self._file = disk / "chaos.db"
        self.url = self.own_url = f"sqlite:///{self._file}"


class PostgresPlace(Place):
    """A server that is stopped and killed, and if `rough` behind a proxy, with a small disk."""

    name = "postgres"
    transactional = True
    skews = True
    touches_sessions = True
    _look_at = 0.0
    _is_away = False

    def __init__(self, *, rough: bool) -> None:
        super().__init__()
        self._rough = rough
        self._proxy: Proxy | None = None
        self._laid: list[tuple[str, Trap]] = []

    def _build(self) -> None:
        disk = self._small_disk(600) if self._rough else None
        settings = {"max_wal_size": "96MB", "min_wal_size": "32MB", "max_connections": "200"}
        data = disk / "data" if disk else None
        self._server = self._stack.enter_context(PostgresServer.start(settings=settings, data_dir=data))
        self.url = self.own_url = create_database(self._server)
        self._prepare(self.own_url)
        self.faults |= {
            "kill backend": 2,
            "kill listener": 3,
            "restart server": 0.7,
            "kill server": 0.4,
            "connection storm": 0.7,
            "hold snapshot": 0.7,
        }
        self.certain = "outage"
        if self._rough:
            name = self.own_url.partition("?")[0].rpartition("/")[2]
            self._proxy = self._stack.enter_context(Proxy(self._server.dsn(name, tcp=True)))
            self.url = self._proxy.url
            self.faults |= {
                "cut": 2,
                "cut before commit": 3,
                "cut after commit": 3,
                "freeze line": 2,
                "half open": 1,
                "slow line": 1,
            }

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None, "only a rough place has a proxy"
        return self._proxy

    def _cut(self, chance: random.Random) -> None:
        self.proxy.cut(reset=chance.random() < 0.5)

    def _cut_one(self, chance: random.Random) -> None:
        if link := self.proxy.pick(chance):
            link.cut(reset=chance.random() < 0.5)

    def _freeze_one(self, chance: random.Random) -> None:
        if link := self.proxy.pick(chance):
            link.may_pass.clear()
            self._later(chance.uniform(0.2, 3.0), link.may_pass.set)

    def _cut_before_commit(self, chance: random.Random) -> None:
        self._laid.append(("cut before commit", self.proxy.on_commit("before")))

    def _cut_after_commit(self, chance: random.Random) -> None:
        self._laid.append(("cut after commit", self.proxy.on_commit("after")))

    def _freeze_line(self, chance: random.Random) -> None:
        self.proxy.freeze()
        self._later(chance.uniform(0.2, 3.0), self.proxy.thaw)

    def _half_open(self, chance: random.Random) -> None:
        self.proxy.half_open()

    def _slow_line(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            self.proxy.weather(delay=chance.uniform(0.005, 0.05))
        else:
            self.proxy.weather(bytes_per_second=50_000)
        self._later(1.0, self.proxy.weather)

    def _kill_backend(self, chance: random.Random) -> None:
        self._terminate("application_name like 'commandbus%'", chance)

    def _kill_listener(self, chance: random.Random) -> None:
        self._terminate("application_name = 'commandbus listen'", chance)

    def _terminate(self, which: str, chance: random.Random) -> None:
        # In a storm there may be no place for us either.
        with contextlib.suppress(psycopg.OperationalError), self._admin() as connection:
            rows = connection.execute(
                f"select pid from pg_stat_activity where {which} and pid <> pg_backend_pid()".encode()
            ).fetchall()
            if rows:
                connection.execute("select pg_terminate_backend(%s)", chance.choice(rows))

    def _outage(self, chance: random.Random) -> None:
        """The server is away for longer than a pool tries to connect at once."""
        self.certain = None
        self.go_away()
        self._later(chance.uniform(*self.outage_seconds), self.come_back)

    def go_away(self) -> None:
        self._is_away = True
        self._server.halt("immediate")

    def come_back(self) -> None:
        self._make_room()
        self._server.restart()
        self._is_away = False

    def _restart_server(self, chance: random.Random) -> None:
        if self._is_away:
            return
        # No server starts on a full disk.
        self._make_room()
        self._server.restart("immediate")

    def _kill_server(self, chance: random.Random) -> None:
        if self._is_away:
            return
        self._server.kill()
        self._make_room()
        self._server.restart()

    def _connection_storm(self, chance: random.Random) -> None:
        """Somebody takes what connections are left: a hundred are allowed in all."""
        taken: list[psycopg.Connection[Any]] = []
        with contextlib.suppress(psycopg.OperationalError):
            for _ in range(150):
                taken.append(psycopg.connect(self._server.dsn(), autocommit=True, connect_timeout=2))

        def let_go() -> None:
            for connection in taken:
                connection.close()

        self._later(chance.uniform(0.5, 1.5), let_go)

    def _hold_snapshot(self, chance: random.Random) -> None:
        with contextlib.suppress(psycopg.OperationalError):
            connection = psycopg.connect(self.own_url, connect_timeout=2)
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("select count(*) from commandbus.command")
            self._later(chance.uniform(1.0, 3.0), connection.close)

    def mend(self, *, all_of_them: bool = False) -> None:
        super().mend(all_of_them=all_of_them)
        if all_of_them and self._proxy is not None:
            self.spared += Counter(fault for fault, trap in self._laid if not trap.count)
            self._laid = []
            self._proxy.clear_traps()
            self._proxy.thaw()
            self._proxy.forget_abandoned()
        if self._undo or (time.monotonic() < self._look_at and not all_of_them):
            return
        self._look_at = time.monotonic() + 1.0
        if not self._answers():
            # A full disk makes a server give up altogether.
            self._server.restart()

    def _answers(self) -> bool:
        try:
            with self._admin():
                return True
        except psycopg.OperationalError:
            return Path(f"/proc/{self._server_pid()}").exists()

    def _server_pid(self) -> int:
        with contextlib.suppress(PostgresUnavailable):
            return self._server.pid
        return 0

    @contextlib.contextmanager
    def _admin(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self._server.dsn(), autocommit=True, connect_timeout=5) as connection:
            yield connection


class PgmqPlace(PostgresPlace):
    """The same with commands as messages of PGMQ."""

    name = "pgmq"
    option = "&transport=pgmq"
    has_gates = False
    in_sequence = False

    def _install(self, url: str) -> None:
        install(url)

    def _build(self) -> None:
        super()._build()
        self.callers_url = self.url
        self.url += self.option


class FailoverPlace(Place):
    """A primary that dies, and a synchronous standby that takes over, once in a run."""

    name = "failover"
    transactional = True

    def _build(self) -> None:
        self._pair: Pair = self._stack.enter_context(replicated())
        single = create_database(self._pair.primary)
        self._prepare(single)
        self.url = self.own_url = self._pair.both(single)
        self.faults["fail over"] = 2.0
        self.certain = "fail over"

    def _fail_over(self, chance: random.Random) -> None:
        self._pair.fail_over()
        del self.faults["fail over"]
        self.certain = None


class PoolerPlace(Place):
    """A server behind a pooler in transaction mode, which is killed and comes back."""

    name = "pooler"
    transactional = True
    poll_interval = 0.3

    def _build(self) -> None:
        server = self._stack.enter_context(PostgresServer.start())
        self.own_url = create_database(server)
        self._prepare(self.own_url)
        self._pooler = self._stack.enter_context(Pooler(self.own_url))
        self.callers_url = self._pooler.url
        self.url = f"{self._pooler.url}&pooler=on"
        self.faults |= {"kill pooler": 3.0}

    def _kill_pooler(self, chance: random.Random) -> None:
        self._pooler.kill()
        self._later(chance.uniform(0.1, 1.0), self._pooler.start)


def place_named(name: str, folder: Path, *, rough: bool = True) -> Place:
    """`rough`: with a small disk, and PostgreSQL behind a proxy; else all is as fast as it can be."""
    match name:
        case "sqlite":
            return SQLitePlace(folder, rough=rough)
        case "postgres":
            return PostgresPlace(rough=rough)
        case "pgmq":
            return PgmqPlace(rough=rough)
        case "failover":
            return FailoverPlace()
        case "pooler":
            return PoolerPlace()
    raise SystemExit(f"no such place: {name}; there are sqlite, postgres, pgmq, failover and pooler")
