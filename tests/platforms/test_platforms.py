"""Windows, macOS and network drives, as far as they can be tried on any machine."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from commandbus import installation, new_event_loop
from commandbus.engines.postgres import watch
from commandbus.engines.postgres.event_loops import check_loop
from commandbus.engines.sqlite import location
from commandbus.errors import ConfigurationError
from commandbus.interfaces.cli import signals
from commandbus.sync import SyncCommandBus
from tests.platforms import unix_names

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
EMBEDDED = ("sending", "worker_loop")


def run(*arguments: str | Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


IMPORT_ALL = """
import tests.platforms.unlike_unix
tests.platforms.unlike_unix.take_away()
import importlib, pkgutil, commandbus
# Django is set up first; textual imports Unix names of other packages here, and works on Windows.
skipped = (
    "commandbus.__main__", "commandbus.integrations.django", "commandbus.interfaces.cli.tui"
)
for module in pkgutil.walk_packages(commandbus.__path__, "commandbus."):
    if not module.name.startswith(skipped):
        importlib.import_module(module.name)
        print(module.name)
"""


def test_every_module_can_be_imported_without_what_only_unix_has() -> None:
    ended = run("-c", IMPORT_ALL)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) > 200


@pytest.mark.slow
def test_the_tests_of_every_system_can_be_collected_without_what_only_unix_has() -> None:
    """A module that cannot be imported ends a run before its first test."""
    plugins = ["tests.platforms.unlike_unix", "no:commandbus", "no:xdist", "no:cacheprovider"]
    chosen = ["--collect-only", "-q", "-m", "not postgres", "tests/unit", "tests/conformance"]
    ended = run("-m", "pytest", *(f"-p{name}" for name in plugins), *chosen)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_embedded_engines_work_without_what_only_unix_has(tmp_path: Path) -> None:
    """A part of the conformance suite, in memory and on SQLite, in both runtimes."""
    modules = [f"tests/conformance/test_{name}.py" for name in EMBEDDED]
    plugins = ["tests.platforms.unlike_unix", "no:commandbus", "no:xdist", "no:cacheprovider"]
    chosen = [
        "-m",
        "not postgres",
        "-q",
        "-x",
        "--timeout-method=thread",
        f"--basetemp={tmp_path}/base",
    ]
    ended = run("-m", "pytest", *(f"-p{name}" for name in plugins), *chosen, *modules, timeout=240)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]


WORK_ON_A_SERVER = """
import tests.platforms.unlike_unix
tests.platforms.unlike_unix.take_away()
import asyncio, sys
from commandbus import CommandBus, HandlerRegistry, Worker
from commandbus.sync import SyncCommandBus, SyncWorker
registry = HandlerRegistry()

@registry.handler("orders", "ship")
def ship(command, context):
    return command.data

with SyncCommandBus(sys.argv[1], migrate=True) as bus:
    with SyncWorker(bus, "orders", registry):
        for number in (1, 2):
            print(bus.request("orders", "ship", number, timeout=20).result, flush=True)

async def main():
    async with CommandBus(sys.argv[1]) as bus, Worker(bus, "orders", registry):
        for number in (3, 4):
            print((await bus.request("orders", "ship", number, timeout=20)).result, flush=True)

asyncio.run(main())
"""


@pytest.mark.postgres
def test_a_server_is_used_without_what_only_unix_has() -> None:
    from tests.postgres.database import empty_url  # starts a server as Unix does

    ended = run("-c", WORK_ON_A_SERVER, empty_url())
    assert ended.stdout.split() == ["1", "2", "3", "4"], ended.stdout + ended.stderr
    assert "not listening" not in ended.stderr


@pytest.mark.parametrize("taken", [(), ("poll",)], ids=["poll", "select"])
def test_what_arrives_on_a_socket_is_seen(
    taken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in taken:
        monkeypatch.delattr(select, name)
    here, there = socket.socketpair()
    with here, there:
        assert not watch.has_arrived(0, here.fileno())
        assert not watch.has_arrived(0.01, here.fileno(), there.fileno())
        there.send(b"!")
        assert watch.has_arrived(5, there.fileno(), here.fileno())
        assert watch.has_arrived(0, here.fileno())


def test_a_connection_is_shut_down_where_a_socket_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> int:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(os, "dup", refuse)
    here, there = socket.socketpair()
    with here, there:
        there.settimeout(5)
        watch.shut_down(SimpleNamespace(pgconn=SimpleNamespace(socket=here.fileno())))
        assert there.recv(1) == b""


def test_a_worker_on_windows_is_not_ended_because_a_launcher_is_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a virtual environment there the program is a child of its launcher, which Popen started."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv(signals.SUPERVISOR, str(os.getpid()))
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append(number))
    before = threading.active_count()
    signals.Signals._watch_supervisor(object())  # type: ignore[arg-type]
    assert threading.active_count() == before
    assert not ended
    assert signals.SUPERVISOR not in os.environ, "its children have another one"


@pytest.mark.skipif(sys.platform != "linux", reason="the names are those of Linux")
def test_the_names_that_are_taken_away_exist() -> None:
    missing = [name for name in unix_names.OF_OS if not hasattr(os, name)]
    missing += [name for name in unix_names.OF_SIGNAL if not hasattr(signal, name)]
    missing += [name for name in unix_names.OF_SELECT if not hasattr(select, name)]
    assert not missing, "These names are misspelt: Linux does not have them."


def test_workers_on_windows_run_on_a_loop_that_psycopg_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.setattr(sys, "platform", "win32")
    loop = new_event_loop()
    try:
        assert isinstance(loop, asyncio.SelectorEventLoop)
        check_loop(loop)
    finally:
        loop.close()


def test_the_default_loop_of_windows_is_refused_with_the_one_to_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.SelectorEventLoop()
    monkeypatch.setattr(asyncio, "ProactorEventLoop", asyncio.SelectorEventLoop, raising=False)
    try:
        with pytest.raises(ConfigurationError, match=r"loop_factory=commandbus\.new_event_loop"):
            check_loop(loop)
    finally:
        loop.close()


MOUNTED = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled)
//user@nas.local/share on /Volumes/my share (1) (smbfs, nodev, nosuid, mounted by user)
server:/export on /Volumes/export (nfs)
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/Users/x", "apfs"), ("/Volumes/my share (1)/x", "smbfs"), ("/Volumes/export", "nfs")],
)
def test_macos_is_asked_by_its_list_of_mounts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str, kind: str
) -> None:
    def listed(command: Sequence[str], **_: object) -> object:
        assert command == ["/sbin/mount"]
        return SimpleNamespace(stdout=MOUNTED)

    monkeypatch.setattr(subprocess, "run", listed)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert location.filesystem_of(Path(folder), str(tmp_path / "missing")) == kind


def test_a_list_of_mounts_that_cannot_be_had_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hang(command: Sequence[str], **_: object) -> object:
        raise subprocess.TimeoutExpired(command, 5)

    monkeypatch.setattr(subprocess, "run", hang)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert location.filesystem_of(tmp_path, str(tmp_path / "missing")) == ""


@pytest.mark.parametrize(
    ("drive", "remote"), [("\\\\nas\\share", True), ("Z:", True), ("C:", False)], ids=repr
)
def test_network_drives_of_windows_are_known(
    monkeypatch: pytest.MonkeyPatch, drive: str, remote: bool
) -> None:
    kernel = SimpleNamespace(GetDriveTypeW=lambda root: {"Z:\\": 4, "C:\\": 3}[root])
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert location._is_remote(drive) is remote


@pytest.mark.parametrize("kind", sorted(location._NETWORK))
def test_a_file_on_a_network_drive_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "filesystem_of", lambda folder: kind)
    with pytest.raises(ConfigurationError, match="Put the file on a local disk"):
        SyncCommandBus(f"sqlite:///{tmp_path}/bus.db").open()
    assert not list(tmp_path.iterdir())


def test_the_unrelated_distribution_beside_ours_is_named_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "commandbus").mkdir()
    file = str(tmp_path / "commandbus" / "__init__.py")
    (tmp_path / "durable_commandbus-0.1.0.dist-info").mkdir()
    installation.warn_of_namesake(file)  # a warning would be an error here
    (tmp_path / "commandbus-1.0.1.dist-info").mkdir()
    with pytest.warns(RuntimeWarning) as warnings:
        installation.warn_of_namesake(file)
    (warning,) = warnings
    assert "commandbus-1.0.1" in str(warning.message)
    assert "pip uninstall --yes commandbus" in str(warning.message)


@pytest.mark.parametrize("theirs", ["class CommandBus: pass\n", None], ids=["replaced", "removed"])
def test_a_package_that_the_unrelated_distribution_replaced_says_so(
    tmp_path: Path, theirs: str | None
) -> None:
    package = tmp_path / "commandbus"
    package.mkdir()
    for name in ("errors.py", "installation.py"):
        (package / name).write_text((SOURCE / "commandbus" / name).read_text(encoding="utf-8"))
    if theirs is not None:
        (package / "__init__.py").write_text(theirs)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import commandbus.errors"
    ended = run("-S", "-c", script)
    assert ended.returncode == 1
    assert "pip uninstall --yes commandbus durable-commandbus" in ended.stderr


def test_every_supported_version_of_python_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [c.rsplit(" ", 1)[1] for c in project["classifiers"] if "Python :: 3." in c]
    assert named == ["3.11", "3.12", "3.13", "3.14"]
    systems = [c for c in project["classifiers"] if c.startswith("Operating System")]
    assert systems == ["Operating System :: OS Independent"]
