"""Public signatures: what `help()` and `inspect.signature` show is what a caller may pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, get_overloads

import commandbus
from commandbus import pgmq, processes, records, retry, sync

MODULES: tuple[ModuleType, ...] = (commandbus, sync, records, processes, pgmq, retry)
INTERNAL = ("Unpack[", "Scope", "Op[", "Flow[", "P.args", " at 0x")
JSON = {
    "error_details",
    "message",
    "data",
    "result",
    "custom_data",
    "state",
    "plain",
    "value",
    "details",
    "payload",
    "args",
    "kwargs",
}
"""Parameters of any JSON value."""
PASSED_ON = {"args", "kwargs"}
"""The arguments of a function of the caller."""
DRIVERS = {"connection", "within"}
"""Connections and sessions of any supported driver."""
UNKNOWN_RESULTS = {"step", "result", "new_state", "decode_state"}
"""What comes back is of the caller's own: values as JSON keeps them, the state of a process."""


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in MODULES:
        for name in dir(module):
            found = getattr(module, name)
            if name.startswith("_") or not getattr(found, "__module__", "").startswith("commandbus"):
                continue
            if callable(found):
                yield name, found
            for member in vars(found) if inspect.isclass(found) else ():
                method = getattr(found, member)
                if not member.startswith("_") and inspect.isroutine(method):
                    yield f"{name}.{member}", method
            for base in found.__mro__[1:] if inspect.isclass(found) else ():
                if base.__module__.startswith("commandbus"):
                    for member in vars(base):
                        method = getattr(found, member)
                        if not member.startswith("_") and inspect.isroutine(method):
                            yield f"{name}.{member}", method


CALLABLES = dict(public_callables())


def signature_of(name: str) -> inspect.Signature | None:
    try:
        return inspect.signature(CALLABLES[name])
    except ValueError:  # an exception that adds nothing to that of Python
        return None


def test_every_public_name_says_what_it_is() -> None:
    silent = [name for name, found in CALLABLES.items() if not inspect.getdoc(found)]
    assert silent == []


def test_signatures_show_no_internals() -> None:
    shown = {name: str(signature_of(name)) for name in CALLABLES}
    assert {name: text for name, text in shown.items() if any(i in text for i in INTERNAL)} == {}


def test_no_parameter_and_no_result_is_any_where_a_type_is_known() -> None:
    found: list[str] = []
    for name, function in CALLABLES.items():
        signature = signature_of(name)
        if signature is None or get_overloads(getattr(function, "__func__", function)):
            continue  # overloads have the types
        found += [
            f"{name}({parameter.name})"
            for parameter in signature.parameters.values()
            if str(parameter.annotation) in ("Any", "typing.Any")
            and parameter.name not in JSON | DRIVERS | PASSED_ON
        ]
        result = str(signature.return_annotation)
        if result in ("Any", "typing.Any") and name.rpartition(".")[2] not in UNKNOWN_RESULTS:
            found.append(f"{name} -> Any")
    assert found == []


def test_constructors_show_every_setting() -> None:
    for kind in (commandbus.CommandBus, sync.SyncCommandBus):
        assert {"retention", "max_pending", "priorities"} <= set(inspect.signature(kind).parameters)
    for worker in (commandbus.Worker, sync.SyncWorker):
        parameters = inspect.signature(worker).parameters
        assert parameters["prefetch_max"].default == commandbus.WorkerSettings().prefetch_max
