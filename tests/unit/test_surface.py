"""The public names: few at the top, each in one public module, imported on first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

import pytest

import commandbus
from commandbus.records import Page

ROOMS = [
    import_module(f"commandbus.{name}")
    for name in ("names", "sync", "records", "processes", "pgmq", "retry", "errors")
]


def public(module: ModuleType) -> set[str]:
    """What the module defines or re-exports; what it needs itself comes from elsewhere."""
    return {
        name
        for name, value in vars(module).items()
        if name[0].isalpha()
        if str(getattr(value, "__module__", "commandbus")).startswith("commandbus")
    } - {"annotations"}


def test_the_top_of_the_package_is_small() -> None:
    assert 35 <= len(commandbus.__all__) <= 45


def test_the_top_of_the_package_has_the_names_of_the_one_list() -> None:
    star: dict[str, object] = {}
    exec("from commandbus import *", star)
    del star["__builtins__"]
    assert (
        set(star) - {"__builtins__"}
        == {name for name in vars(ROOMS[0]) if name[0].isalpha()}  # also Provided, an alias of typing's
        == set(commandbus.__all__)
        == set(dir(commandbus))
    )


@pytest.mark.parametrize("name", ["no_such_name", "_private", "BatchRecord"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'commandbus' has no attribute '{name}'"):
        getattr(commandbus, name)


def test_every_public_name_has_one_home() -> None:
    """Errors that handlers raise and programs often catch are at the top, too."""
    homes: dict[str, list[str]] = {}
    for room in ROOMS:
        for name in public(room):
            homes.setdefault(name, []).append(room.__name__)
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert all(found == ["commandbus.names", "commandbus.errors"] for found in twice.values()), twice


def test_importing_the_package_imports_no_part_of_it() -> None:
    code = "import sys, commandbus; print('commandbus.names' in sys.modules); commandbus.Worker; "
    code += "print('commandbus.names' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


def test_a_page_is_a_sequence_with_a_cursor() -> None:
    page = Page(["c", "b", "a"], "a")
    assert (len(page), page[0], page[-1], page[1:], list(page)) == (
        3,
        "c",
        "a",
        ["b", "a"],
        ["c", "b", "a"],
    )
    assert "b" in page
    assert page.next == "a"
    assert isinstance(page, Sequence)
    assert not Page([])
    with pytest.raises(AttributeError):
        page.next = "b"  # type: ignore[misc]
