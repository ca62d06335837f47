"""PGMQ 1.11 as an extension: its files come from the npm package of PGlite's PGMQ, fetched when needed.

PostgreSQL 18 takes extensions from any folder that its settings name, so nothing is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import pytest

from commandbus.testing.postgres import PostgresServer, available_servers, create_database

PACKAGE = "@electric-sql/pglite-pgmq@0.0.6"
VERSION = "1.11.1"
FETCH_SECONDS = 60


@cache
def server_with_extension() -> PostgresServer | str:
    """A server that offers the extension, or why there is none."""
    newest = next((found for found in available_servers() if found.bin_dir is not None), None)
    if newest is None or newest.major < 18:
        return "extensions in a folder of their own need PostgreSQL 18"
    npm = shutil.which("npm")
    if npm is None:
        return f"npm is missing, which would fetch {PACKAGE}"
    # Not pytest's folder: the server may run as another user, who must be able to read it.
    folder = Path(tempfile.mkdtemp(prefix="commandbus-pgmq-"))
    folder.chmod(0o755)
    try:
        subprocess.run(
            [npm, "pack", "--silent", PACKAGE],
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=FETCH_SECONDS,
        )
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(folder)
        return f"{PACKAGE} could not be fetched: {error}"
    (package,) = folder.glob("*.tgz")
    with tarfile.open(package) as outer:
        inner = outer.extractfile("package/dist/pgmq.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=inner) as files:
            _unpack(files, folder)
    share = folder / "share" / "postgresql"
    for path in (folder / "share", share, share / "extension"):
        path.chmod(0o755)
    for path in (share / "extension").iterdir():
        path.chmod(0o644)
    return PostgresServer.start(newest, settings={"extension_control_path": f"$system:{share}"})


def _unpack(files: tarfile.TarFile, folder: Path) -> None:
    """Its plain files only; the safe `extractall` came with Python 3.11.4."""
    for member in files.getmembers():
        content = files.extractfile(member) if member.isfile() else None
        target = (folder / member.name).resolve()
        if content is not None and target.is_relative_to(folder.resolve()):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())


def database_with_offer() -> str:
    """A new database whose server offers the extension; the test is skipped where there is none."""
    found = server_with_extension()
    if isinstance(found, str):
        pytest.skip(f"PGMQ as an extension is NOT tested: {found}")
    return create_database(found)
