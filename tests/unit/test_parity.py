"""Both runtimes have the same public names with the same signatures; only `async` differs."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import commandbus
import commandbus.pgmq
import commandbus.sync

BLOCKING = {name: value for name, value in vars(commandbus.sync).items() if name[0].isalpha()}
PAIRS = [
    (getattr(commandbus, name.removeprefix("Sync")), blocking) for name, blocking in BLOCKING.items()
]
PAIRS.append((commandbus.pgmq.PgmqClient, commandbus.pgmq.SyncPgmqClient))

# What `async with` needs instead of `with`.
RENAMED = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def public_names(cls: type) -> set[str]:
    names = {name for name in dir(cls) if not name.startswith("_")}
    return names | {new for old, new in RENAMED.items() if hasattr(cls, old) or hasattr(cls, new)}


def signature(function: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults; annotations may name the other runtime's classes."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


each_pair = pytest.mark.parametrize(
    ("asynchronous", "blocking"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS]
)


@each_pair
def test_both_have_the_same_public_names(asynchronous: type, blocking: type) -> None:
    assert public_names(asynchronous) == public_names(blocking)


@each_pair
def test_both_are_made_with_the_same_arguments(asynchronous: type, blocking: type) -> None:
    assert signature(asynchronous) == signature(blocking)


@each_pair
def test_methods_take_the_same_arguments(asynchronous: type, blocking: type) -> None:
    different = [
        name
        for name in public_names(asynchronous) - set(RENAMED.values())
        if callable(getattr(asynchronous, name))
        if signature(getattr(asynchronous, name)) != signature(getattr(blocking, name))
    ]
    assert different == []


def said(cls: type, name: str) -> str:
    """A docstring, without what only tells the runtimes apart."""
    text = " ".join((inspect.getdoc(getattr(cls, name)) or "").split())
    return re.sub(r"\b(?:await |async (?=with)|Sync(?=[A-Z]))", "", text)


@each_pair
def test_methods_say_the_same_about_themselves(asynchronous: type, blocking: type) -> None:
    """Up to what the runtimes really do differently."""
    names = [
        name
        for name in public_names(asynchronous) - set(RENAMED.values())
        if inspect.isroutine(getattr(asynchronous, name))
    ]
    assert [name for name in names if not said(asynchronous, name)] == []
    different = {
        name: (said(asynchronous, name), said(blocking, name))
        for name in set(names) - {"run", "stop", "step"}
        if said(asynchronous, name) != said(blocking, name)
    }
    assert different == {}


@each_pair
def test_one_awaits_and_the_other_blocks(asynchronous: type, blocking: type) -> None:
    awaited = {
        name
        for name in public_names(asynchronous)
        if inspect.iscoroutinefunction(getattr(asynchronous, name, None))
    }
    assert awaited, "an asyncio class without anything to await"
    assert not any(inspect.iscoroutinefunction(getattr(blocking, name)) for name in awaited)


@each_pair
def test_properties_are_properties_in_both(asynchronous: type, blocking: type) -> None:
    kinds = [
        {
            name
            for name in public_names(cls) - set(RENAMED.values())
            if isinstance(inspect.getattr_static(cls, name), property)
        }
        for cls in (asynchronous, blocking)
    ]
    assert kinds[0] == kinds[1]


def test_every_name_of_the_blocking_side_has_its_counterpart() -> None:
    missing = [
        name
        for name in BLOCKING
        if not name.startswith("Sync") or name.removeprefix("Sync") not in commandbus.__all__
    ]
    assert missing == []


def test_everything_that_awaits_has_a_blocking_counterpart() -> None:
    """Also what is added to the asyncio side and forgotten on the other."""
    awaiting = [
        name
        for name in commandbus.__all__
        if inspect.isclass(cls := getattr(commandbus, name))
        if any(inspect.iscoroutinefunction(getattr(cls, method, None)) for method in public_names(cls))
    ]
    assert {"CommandBus", "ProcessReplyRouter", "TroubleshootingQueue"} <= set(awaiting)
    assert [name for name in awaiting if f"Sync{name}" not in BLOCKING] == []


def test_the_bus_within_a_transaction_is_the_same_in_both() -> None:
    from commandbus.runtimes.asyncio.bus import BusWithin
    from commandbus.runtimes.threads.bus import SyncBusWithin

    assert public_names(BusWithin) == public_names(SyncBusWithin)


@pytest.mark.parametrize("shown", [cls for pair in PAIRS for cls in pair])
def test_signatures_show_no_internals(shown: type) -> None:
    for name in public_names(shown):
        if inspect.isfunction(method := getattr(shown, name, None)):
            text = f"{name}{inspect.signature(method)}"
            assert "NODEFAULT" not in text, text
            assert "object at 0x" not in text, text
            assert not re.search(r"\bbool'? = None", text), text
