"""What the doctor says of a PostgreSQL database, on real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commandbus import HandlerRegistry
from commandbus.engines.postgres import doctor as doctors
from commandbus.engines.postgres.doctor import doctor
from commandbus.engines.postgres.roles import roles_sql
from commandbus.engines.postgres.schema import upgrade
from commandbus.store.administration import Finding, Level
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, available_servers, create_database
from commandbus.testing.waiting import eventually
from tests.postgres.database import server
from tests.postgres.test_trouble import end_backends
from tests.security.stranger import NAME, stranger
from tests.support.proxy import Proxy

pytestmark = pytest.mark.postgres


@pytest.fixture
def url() -> str:
    found = create_database(server(os.getpid()))
    upgrade(found)
    return found


def found(url: str, subject: str) -> Finding:
    return next(finding for finding in doctor(url) if finding.subject == subject)


def execute(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())


def test_a_role_that_may_connect_and_has_no_rights_is_named(url: str) -> None:
    stranger(url).close()
    finding = found(url, "access")
    assert finding.level is Level.WARNING
    assert NAME in finding.value
    assert "revoke connect on database" in (finding.advice or "")
    name = url.partition("?")[0].rpartition("/")[2]
    execute(url, f'revoke connect on database "{name}" from public')
    finding = found(url, "access")
    assert finding.level is Level.OK
    assert NAME not in finding.value


def test_roles_of_the_bus_are_known(url: str) -> None:
    execute(url, roles_sql("commandbus"))
    execute(url, "drop role if exists doctor_worker")
    execute(url, "create role doctor_worker login in role commandbus_worker")
    try:
        assert "doctor_worker" not in found(url, "access").value
    finally:
        execute(url, "drop role doctor_worker")


def test_rights_of_every_role_are_an_error(url: str) -> None:
    assert found(url, "rights").level is Level.OK
    for grant, word in (
        ("select on commandbus.command", "read tables"),
        ("insert on commandbus.queue", "write tables"),
        ("create on schema commandbus", "create tables"),
    ):
        execute(url, f"grant {grant} to public")
        finding = found(url, "rights")
        assert finding.level is Level.ERROR
        assert word in finding.value
        execute(url, f"revoke {grant} from public")
    assert found(url, "rights").level is Level.OK


def test_roles_that_an_upgrade_has_left_behind_are_an_error(url: str) -> None:
    execute(url, roles_sql("commandbus"))
    assert "commandbus_sender" in found(url, "rights").value
    assert found(url, "rights").level is Level.OK
    execute(url, "revoke all on function commandbus.lock_capacity from commandbus_worker")
    finding = found(url, "rights")
    assert finding.level is Level.ERROR
    assert "missing for commandbus_worker" in finding.value
    assert "db roles" in (finding.advice or "")


def test_a_role_that_can_create_functions_where_the_bus_looks_is_named(url: str) -> None:
    stranger(url).close()
    assert found(url, "search path").level is Level.OK
    for grantee in ("public", NAME):
        execute(url, f"grant create on schema public to {grantee}")
        finding = found(url, "search path")
        assert finding.level is Level.WARNING
        assert NAME in finding.value
        assert "revoke create on schema" in (finding.advice or "")
        execute(url, f"revoke create on schema public from {grantee}")
    assert found(url, "search path").level is Level.OK
    execute(url, f"create schema owned_by_it authorization {NAME}")
    execute(url, "grant usage on schema owned_by_it to public")
    finding = found(
        f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3Downed_by_it", "search path"
    )
    assert finding.level is Level.WARNING
    assert "owned_by_it" in finding.value


def test_a_connection_without_encryption_is_named(url: str) -> None:
    assert found(url, "encryption").value == "none, on this machine only"


def test_a_connection_to_another_machine_without_encryption_is_a_warning(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers of the tests are on this machine, so what they say of the connection is replaced."""
    ask = doctors._Examination._row

    def elsewhere(self: Any, name: str, *params: Any) -> Any:
        said = ask(self, name, *params)
        return (*said[:3], False, False) if name == "encryption" else said

    monkeypatch.setattr(doctors._Examination, "_row", elsewhere)
    finding = found(url, "encryption")
    assert (finding.level, finding.value) == (Level.WARNING, "none")
    assert "sslmode=verify-full" in (finding.advice or "")


@pytest.fixture
def worker(url: str) -> Iterator[Proxy]:
    """A worker behind a proxy."""
    name = url.partition("?")[0].rpartition("/")[2]
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with Proxy(server(os.getpid()).dsn(name, tcp=True)) as proxy, SyncCommandBus(proxy.url) as bus:
        one = SyncWorker(bus, "orders", registry)
        running = threading.Thread(target=one.run, daemon=True)
        running.start()
        try:
            eventually(lambda: bus.list_workers() and bus.engine.connections.listening == 1)
            yield proxy
        finally:
            proxy.refusing = False
            one.stop(5)
            running.join(20)


def test_a_worker_that_does_not_listen_is_noticed(url: str, worker: Proxy) -> None:
    assert found(url, "listen").level is Level.OK
    finding = found(url, "listeners")
    assert (finding.level, finding.value) == (Level.OK, "1 for 1 process with workers")
    worker.refusing = True
    assert end_backends(url, "commandbus listen") == 1
    finding = found(url, "listeners")
    assert (finding.level, finding.value) == (Level.WARNING, "0 for 1 process with workers")


def test_an_encrypted_connection_is_described(tmp_path: Path) -> None:
    """With a certificate made for the test; it is checked only when the URL says so."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    with PostgresServer.start(available_servers()[-1]) as own:
        data = Path(execute_value(own.dsn(), "show data_directory"))
        key, certificate = tmp_path / "server.key", tmp_path / "server.crt"
        make = [openssl, "req", "-new", "-x509", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
        make += [
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ]
        subprocess.run(make, check=True, capture_output=True, timeout=30)
        for file in (key, certificate):
            shutil.copy(file, data)
            owner = data.stat()
            os.chown(data / file.name, owner.st_uid, owner.st_gid)
            (data / file.name).chmod(0o600)
        try:
            execute(own.dsn(), "alter system set ssl = on")
        except psycopg.errors.InvalidParameterValue as error:
            pytest.skip(str(error))
        execute(own.dsn(), "select pg_reload_conf()")
        url = own.dsn(create_database(own).partition("?")[0].rpartition("/")[2], tcp=True)
        upgrade(url)
        url += "&" if "?" in url else "?"
        eventually(lambda: any("TLSv1" in one.value for one in doctor(f"{url}sslmode=require")))
        assert "not checked (sslmode=require)" in found(f"{url}sslmode=require", "encryption").value
        checked = found(f"{url}sslmode=verify-full&sslrootcert={certificate}", "encryption")
        assert "not checked" not in checked.value
        assert found(f"{url}sslmode=disable", "encryption").value == "none, on this machine only"


def execute_value(url: str, sql: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(sql.encode()).fetchone()
        assert row is not None
        return str(row[0])
