"""A pytest plugin that records which test runs which blocks, and how much processor time each takes.

`pytest -p tests.mutation.recorder`: what a test file ran is written when its last test has ended, so
that an interrupted recording goes on with the next file. Threads that a test starts are included;
processes are not.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutation.marking import Marks
from tests.mutation.mutants import ROOMS
from tests.mutation.recording import (
    FOLDER,
    GROUP,
    IMPORT,
    NEEDS_SERVER,
    SERVER,
    digest,
    source_digests,
)

SERVER_SHARE = 8
"""Of the behaviours of the conformance suite, one of so many is recorded on PostgreSQL, one on PGMQ."""
ROOT = Path(__file__).resolve().parents[2]
_marks = Marks(ROOT, tuple(f"commandbus.{room}" for room in ROOMS))
_marks.install()
_sources = source_digests(ROOT)
_imported: dict[str, int] = {}
_ran: dict[str, dict[str, str]] = defaultdict(dict)
_seconds: dict[str, float] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    with_server = os.environ[GROUP] == SERVER
    items[:] = [
        i for i in items if bool(NEEDS_SERVER.search(i.nodeid)) is with_server and _is_recorded(i)
    ]
    for file in {*config.args} - {_file(item) for item in items}:
        _write(file)  # it has none for this group, which is known from now on


def _is_recorded(item: pytest.Item) -> bool:
    """Of the behaviours of the conformance suite on PostgreSQL and over PGMQ only some."""
    case = getattr(item, "callspec", None)
    engine = "" if case is None else str(case.params.get("configuration"))
    chosen = zlib.crc32(f"{item.nodeid.partition('[')[0]} {engine}".encode())
    return engine not in ("postgres", "pgmq") or chosen % SERVER_SHARE == 0


def pytest_runtestloop() -> None:
    _imported.update(_marks.take())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    _marks.take()
    cpu = time.process_time()
    answer = yield
    # Not by the clock: on a busy machine that says little about a test.
    _seconds[item.nodeid] = time.process_time() - cpu
    for path, blocks in _marks.take().items():
        _ran[path][item.nodeid] = f"{blocks:x}"
    file = _file(item)
    if nextitem is None or _file(nextitem) != file:
        _write(file)
    return answer


def pytest_unconfigure() -> None:
    """Ends here: a thread that a failed test has left behind must not keep the recording waiting."""
    os._exit(0)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _write(file: str) -> None:
    ran = {path: dict(by) for path, by in _ran.items()}
    for path, blocks in _imported.items():
        ran.setdefault(path, {})[IMPORT] = f"{blocks:x}"
    recorded = {"tests": digest(ROOT, file), "sources": _sources, "seconds": _seconds, "ran": ran}
    name = f"{os.environ[GROUP]}.{file.replace('/', '.')}.json"
    Path(os.environ[FOLDER], name).write_text(json.dumps(recorded), encoding="utf-8")
    _seconds.clear()
    _ran.clear()
