"""Schedules and limits that are declared beside handlers, brought into the store.

A worker does this when it starts. What a program has declared is remembered beside the schedule or the
limit itself: one that still is as it was declared follows its declaration, and one that an operator has
changed, disabled or deleted stays as the operator left it. A declaration that is gone from the code is
reported and stays in force until an operator removes it, because another version of the program may
still declare it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from commandbus.domain.limits import Limit
from commandbus.domain.names import as_reason
from commandbus.domain.schedule import Schedule
from commandbus.operations.actions import record_action
from commandbus.operations.schedules import get_schedule, store_schedule
from commandbus.operations.scope import Scope
from commandbus.store.documents import Document, readable
from commandbus.store.op import Op

KIND = "declared"
PAGE = 100


class DeclareReport(msgspec.Struct, frozen=True):
    """What became of declarations, by their names."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Changed or deleted by an operator, and left so."""
    gone: tuple[str, ...] = ()
    """Declared once, not any more, and still there."""


class Declared(Protocol):
    """A registry of handlers."""

    @property
    def schedules(self) -> Mapping[str, Schedule]: ...
    @property
    def limits(self) -> Sequence[Limit]: ...
    def registered_handlers(self) -> list[tuple[str, str]]: ...


def declare(
    scope: Scope, registry: Declared, *, overwrite: bool = False, reason: str | None = None
) -> Op[DeclareReport]:
    """Bring the schedules and limits that are declared in a registry into the store, as a worker does
    when it starts. What an operator has changed, disabled or deleted stays so, unless `overwrite`,
    which is an operator action with a `reason`. What was declared before for a type that has a
    handler here, and is not any more, is reported as gone."""
    because = as_reason(reason)
    report: dict[str, list[str]] = {name: [] for name in DeclareReport.__struct_fields__}
    for key, declared in declarations(registry).items():
        fate = yield from declare_one(scope, key, declared, overwrite, because)
        if fate is not None:
            report[fate].append(key)
    report["gone"] = yield from find_gone(scope, registry)
    return DeclareReport(**{name: tuple(keys) for name, keys in report.items()})


def declarations(registry: Declared) -> dict[str, Schedule | Limit]:
    """What a registry declares, by the names that reports have for it."""
    found: dict[str, Schedule | Limit] = {}
    for schedule in registry.schedules.values():
        # As it is read back: its data may be any object that JSON can be made of.
        found[f"schedule/{schedule.name}"] = msgspec.json.decode(
            msgspec.json.encode(schedule), type=Schedule
        )
    for limit in registry.limits:
        found[f"limit/{limit.domain}/{limit.gate}"] = limit
    return found


def declare_one(
    scope: Scope,
    key: str,
    declared: Schedule | Limit,
    overwrite: bool = False,
    reason: str | None = None,
) -> Op[str | None]:
    """Bring one declaration into the store; returns the field of DeclareReport that it belongs to, None
    if nothing had to change. It may end after any of its commits: what was put and is not remembered
    as declared is found to be as declared the next time."""
    document = yield from scope.store.get_document(KIND, key)
    remembered = readable([document] if document else [], _read)
    before = remembered[0] if remembered else None
    present = yield from _present(scope, declared)
    follows = present is not None and before is not None and _same(present, before)
    if present is not None and _same(present, declared):
        fate = None
    elif present is None and before is None:
        fate = "created"
    elif overwrite or follows:
        fate = "updated"
    else:
        return "kept"
    if fate is not None:
        yield from _put(scope, declared, present)
    if fate == "updated" and not follows:
        action, subject = (
            ("put_schedule", declared.name)
            if isinstance(declared, Schedule)
            else ("set_limit", str(declared))
        )
        yield from record_action(scope, action, subject, reason)
    if before is None or not _same(before, declared):
        body = msgspec.json.encode(declared).decode()
        version = document.version if document else 0
        # Another worker may declare the same at this moment: then it remembers it.
        yield from scope.store.put_document(Document(KIND, key, version, "declared", None, body))
    return fate


def _present(scope: Scope, declared: Schedule | Limit) -> Op[Schedule | Limit | None]:
    if isinstance(declared, Schedule):
        record = yield from get_schedule(scope, declared.name)
        return None if record is None else record.schedule
    limits = yield from scope.store.limits(declared.domain)
    return next((one for one in limits if one.gate == declared.gate), None)


def _put(scope: Scope, declared: Schedule | Limit, present: Schedule | Limit | None) -> Op[None]:
    if isinstance(declared, Schedule):
        enabled = present.enabled if isinstance(present, Schedule) else declared.enabled
        # What code declares is no operator action: a worker may not write records of those.
        yield from store_schedule(scope, msgspec.structs.replace(declared, enabled=enabled))
    else:
        yield from scope.store.put_limit(declared)


def find_gone(scope: Scope, registry: Declared) -> Op[list[str]]:
    """What was declared once for a type with a handler here, is not any more, and is still there."""
    wanted, handled = declarations(registry), set(registry.registered_handlers())
    found: list[str] = []
    after: str | None = None
    while True:
        page = yield from scope.store.list_documents(KIND, after=after, limit=PAGE)
        for document in page:
            for one in readable([document], _read):
                if document.key not in wanted and (one.domain, one.command_type) in handled:
                    still = yield from _present(scope, one)
                    found += [] if still is None else [document.key]
        if len(page) < PAGE:
            return found
        after = page[-1].key


def _same(one: Schedule | Limit, other: Schedule | Limit) -> bool:
    """Whether two are equal but for being enabled."""
    if isinstance(one, Schedule) and isinstance(other, Schedule):
        other = msgspec.structs.replace(other, enabled=one.enabled)
    return one == other


def _read(document: Document) -> Schedule | Limit:
    kind: Any = Schedule if document.key.startswith("schedule/") else Limit
    declared: Schedule | Limit = msgspec.json.decode(document.body, type=kind)
    return declared
