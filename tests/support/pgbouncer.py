"""PgBouncer in transaction mode in front of a server of ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from commandbus.testing import postgres
from commandbus.testing.waiting import eventually

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONFIGURATION = """
[databases]
* = host={host} port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 500
server_tls_sslmode = disable
unix_socket_dir = /tmp
ignore_startup_parameters = extra_float_digits
"""


@contextlib.contextmanager
def pooler(dsn: str) -> Iterator[str]:
    """The address of the same database through the pooler, which has five connections to it."""
    assert PROGRAM is not None
    with psycopg.connect(dsn) as connection:
        host, port = connection.info.host, connection.info.port
    with socket.create_server(("127.0.0.1", 0)) as probe:
        own = probe.getsockname()[1]
    account = postgres._server_account()
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir="/tmp"))
    folder.chmod(0o755)
    file = folder / "pgbouncer.ini"
    file.write_text(CONFIGURATION.format(host=host, port=port, own=own))
    process = subprocess.Popen(
        [PROGRAM, "-q", str(file)],
        user=account.pw_uid if account else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"postgresql://postgres@127.0.0.1:{own}/{urlsplit(dsn).path[1:]}?sslmode=disable"

    def answers() -> bool:
        assert process.poll() is None, "pgbouncer has ended"
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(url, connect_timeout=2).close()
            return True
        return False

    try:
        eventually(answers, 10)
        yield url
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)
