"""Retention: ended commands are forgotten after a time of their status, in small pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from commandbus.domain.lifecycle import FINAL, CommandStatus
from commandbus.domain.moment import SECOND, Duration, as_seconds
from commandbus.domain.names import as_reason
from commandbus.errors import InvalidArgumentError
from commandbus.operations.actions import record_action
from commandbus.operations.ledger import link_forgotten
from commandbus.operations.scope import Flow, Scope, Send
from commandbus.store.op import Op
from commandbus.store.records import Pruned

PIECE = 500
"""Outcomes looked at in one transaction."""
RETENTION = "retention"
"""Who forgets by the settings alone."""


class PruneReport(msgspec.Struct, frozen=True):
    """How many ended commands were forgotten; of a preview, how many would be."""

    gone: int


def check_retention(keep: Mapping[str, Duration]) -> dict[str, float]:
    """Seconds by final status, or InvalidArgumentError. Parked commands wait for an operator, and what
    has not ended is never forgotten."""
    known = {str(status) for status in FINAL}
    found: dict[str, float] = {}
    for status, duration in keep.items():
        name = str(status).upper()
        if name not in known:
            raise InvalidArgumentError(
                f"Retention is for {', '.join(sorted(known))}, not for {str(status)!r}."
            )
        found[name] = as_seconds(duration, f"retention of {name}", minimum=1.0)
    if not found:
        raise InvalidArgumentError("Say how long to keep at least one status, such as COMPLETED.")
    return found


def prune_piece(
    scope: Scope,
    keep: Mapping[str, float],
    after: int,
    reason: str | None = None,
    *,
    preview: bool = False,
) -> Op[Pruned]:
    """One small step of a pass over all outcomes, with its record. Trails with entries of operators are
    named in the ledger: one that is missing and not named was removed by other means."""
    now = yield from scope.store.now()
    cutoffs = {status: now - int(seconds * SECOND) for status, seconds in keep.items()}
    pruned = yield from scope.store.prune(cutoffs, after, PIECE, preview=preview)
    if preview:
        return pruned
    yield from link_forgotten(scope, pruned.linked)
    if pruned.gone:
        said = ", ".join(f"{status} older than {kept:g} s" for status, kept in keep.items())
        yield from record_action(scope, "prune", f"{pruned.gone} of {said}", reason)
    return pruned


def retain(scope: Scope, keep: Mapping[str, float], after: int) -> Op[Pruned]:
    """One small step by the settings."""
    return (yield from prune_piece(replace(scope, actor=RETENTION), keep, after))


def prune(
    scope: Scope,
    keep: Mapping[CommandStatus | str, Duration],
    *,
    limit: int | None = None,
    reason: str | None = None,
    preview: bool = False,
    progress: Callable[[int], bool | None] | None = None,
) -> Flow[PruneReport]:
    """Forget commands that ended longer ago than `keep` says for their status; others stay. Each
    piece is its own transaction with its own record, so work goes on meanwhile. Stops after about
    `limit` commands. A `preview` only counts them. `progress` is called with the number of commands
    forgotten so far after each piece; returning False ends it."""
    seconds = check_retention({str(status): duration for status, duration in keep.items()})
    because = as_reason(reason)
    gone, after = 0, 0
    while True:
        step: Pruned = yield Send(prune_piece(scope, seconds, after, because, preview=preview))
        gone += step.gone
        stopped = progress is not None and progress(gone) is False
        if stopped or step.last is None or (limit is not None and gone >= limit):
            return PruneReport(gone)
        after = step.last
