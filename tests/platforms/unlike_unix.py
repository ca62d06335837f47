"""A plugin of pytest, `-p tests.platforms.unlike_unix`: takes away what only Unix has, after pytest and
its plugins were imported, and before the package is. What the standard library has imported by then
keeps working.
"""

# ruff: noqa: F401 - parts of the standard library are imported before anything is taken away

from __future__ import annotations

import asyncio
import concurrent.futures.process
import multiprocessing.connection
import multiprocessing.util
import os
import select
import signal
import subprocess
import sys
import tempfile
import uuid
from types import ModuleType

import pytest

from tests.platforms.unix_names import MODULES, OF_OS, OF_SELECT, OF_SIGNAL

_taken: list[tuple[ModuleType, str, object]] = []


def take_away() -> None:
    loaded = [name for name in sys.modules if name.partition(".")[0] == "commandbus"]
    assert not loaded, f"too late: {loaded} was imported before"
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # to import it is an ImportError
    for module, names in ((os, OF_OS), (select, OF_SELECT), (signal, OF_SIGNAL)):
        for name in names:
            if hasattr(module, name):
                _taken.append((module, name, getattr(module, name)))
                delattr(module, name)
    if hasattr(os, "process_cpu_count"):  # Python 3.13; without an affinity it is cpu_count
        os.process_cpu_count = os.cpu_count

    def refuse(*_: object) -> None:
        raise NotImplementedError

    asyncio.SelectorEventLoop.add_signal_handler = refuse  # type: ignore[method-assign, assignment]


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    take_away()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Give the names back: the library removes folders of pytest's plugins the way Unix does."""
    for module, name, value in _taken:
        setattr(module, name, value)
