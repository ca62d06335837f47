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
from typing import Self
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


class Pooler:
    """In front of a database, with five connections to it."""

    def __init__(self, dsn: str) -> None:
        assert PROGRAM is not None
        with psycopg.connect(dsn) as connection:
            host, port = connection.info.host, connection.info.port
        with socket.create_server(("127.0.0.1", 0)) as probe:
            own = probe.getsockname()[1]
        self._account = postgres._server_account()
        self._folder = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir="/tmp"))
        self._folder.chmod(0o755)
        self._file = self._folder / "pgbouncer.ini"
        self._file.write_text(CONFIGURATION.format(host=host, port=port, own=own))
        self.url = f"postgresql://postgres@127.0.0.1:{own}/{urlsplit(dsn).path[1:]}?sslmode=disable"
        """The same database, through the pooler."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, "-q", str(self._file)],
            user=self._account.pw_uid if self._account else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(self._answers, 10)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "pgbouncer has ended"
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url, connect_timeout=2).close()
            return True
        return False


@contextlib.contextmanager
def pooler(dsn: str) -> Iterator[str]:
    """The address of the same database through a pooler."""
    with Pooler(dsn) as one:
        yield one.url
