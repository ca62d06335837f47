"""Choosing many commands for an action.

Commands are read page by page, and what is kept of each is small: the payloads of all commands that an
action is for need not fit into memory. Commands that are named are found by their ids, however many
others meet the conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from commandbus.domain.command import CommandRecord, CommandRef
from commandbus.domain.counts import as_items
from commandbus.operations.commands import place_of, query_commands
from commandbus.operations.scope import Flow, Scope
from commandbus.store.op import Op

T = TypeVar("T")
PAGE = 500


def as_ids(command_ids: Iterable[CommandRef] | None) -> set[UUID] | None:
    if command_ids is None:
        return None
    return {place_of(one, None, "command_ids")[0] for one in as_items(command_ids, "command_ids")}


def choose(
    scope: Scope,
    ids: set[UUID] | None,
    keep: Callable[[CommandRecord], T | None],
    limit: int | None,
    **conditions: Any,
) -> Flow[list[T]]:
    """What `keep` makes of commands that meet the conditions of `query_commands`, newest first, and
    have one of the ids if any are given; None leaves a command out."""
    kept: list[T] = []
    named = None if ids is None else sorted(ids, reverse=True)  # ids begin with the time of sending
    cursor: str | None = None
    while limit is None or len(kept) < limit:
        if named is None:
            page = yield query_commands(scope, after=cursor, limit=PAGE, **conditions)
            cursor = page.next
        else:
            page = yield _named(scope, named[:PAGE], conditions)
            named = named[PAGE:]
        kept += [one for record in page if (one := keep(record)) is not None]
        if not named and cursor is None:
            break
    return kept[:limit]


def _named(scope: Scope, ids: Sequence[UUID], conditions: dict[str, Any]) -> Op[list[CommandRecord]]:
    """Those of these commands that meet the conditions: a query looks at nothing but the command."""
    met: list[CommandRecord] = []
    for command_id in ids:
        for found in (yield from scope.store.find(command_id, conditions.get("domain"))):
            after = str(found.sequence + 1)
            met += yield from query_commands(scope, after=after, scan=1, **conditions)
    return met
