"""Whole domains: pause, resume, statistics."""

from __future__ import annotations

from typing import cast

import msgspec

from commandbus.domain.adopted_messages import QueueMapping
from commandbus.domain.names import as_name, as_reason
from commandbus.domain.page import Page, as_limit
from commandbus.domain.priority import Priority, as_priority
from commandbus.errors import InvalidArgumentError, InvalidOperationError, NotFoundError
from commandbus.operations.actions import record_action
from commandbus.operations.batches import leave_batches
from commandbus.operations.ledger import ALL, link_forgotten
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.port import AdoptingStore
from commandbus.store.records import QueueStats


class PurgeReport(msgspec.Struct, frozen=True):
    """How many commands were forgotten."""

    gone: int


def pause(scope: Scope, domain: str, reason: str | None = None, *, new: bool = True) -> Op[None]:
    """Stop giving out commands of a domain, fleet-wide and across restarts, until `resume`.

    Sends are still accepted; commands that run now finish. With new=False, a domain that nothing was
    sent to raises NotFoundError: its name is most likely a mistake.
    """
    checked, name = as_reason(reason), as_name(domain, "domain")
    if not new and name not in (known := (yield from scope.store.domains())):
        there = f"there are {', '.join(known[:10])}" if known else "there is none yet"
        raise NotFoundError(
            f"Nothing was ever sent to the domain {name!r}; {there}. To pause it before its first "
            "command, pass new=True, or --new on the command line."
        )
    if (yield from scope.store.set_paused(name, True, checked, scope.by)):
        yield from record_action(scope, "pause", name, checked)


def resume(scope: Scope, domain: str, reason: str | None = None) -> Op[bool]:
    """Give out commands of a paused domain again; workers are woken. False when it was not paused."""
    checked, name = as_reason(reason), as_name(domain, "domain")
    was_paused = yield from scope.store.set_paused(name, False, None, scope.by)
    if was_paused:
        yield from record_action(scope, "resume", name, checked)
    return was_paused


def stats(scope: Scope, domain: str, *, cap: int | None = None) -> Op[QueueStats]:
    """How many commands of a domain are ready, scheduled, running, parked and ended, and how long
    the first ready one has been waiting. Those that wait are counted no further than `cap`."""
    return (yield from scope.store.stats(as_name(domain, "domain"), cap))


def adopt_queue(
    scope: Scope, domain: str, queue: str, mapping: QueueMapping, *, priority: Priority = "normal"
) -> Op[None]:
    """Bind a PGMQ queue of another program to a domain: each of its messages becomes a command, as the
    mapping says, with retries, troubleshooting and audit; their senders change nothing.

    Repeating it with another mapping is for messages that are read from then on. Raises
    InvalidArgumentError when there is no such queue, InvalidOperationError without transport="pgmq".
    """
    if not scope.store.capabilities.adopted_queues:
        raise InvalidOperationError(
            'Only a bus with transport="pgmq" has queues of other programs to adopt; open it with '
            'CommandBus("postgresql://…", transport="pgmq").'
        )
    if not isinstance(mapping, QueueMapping):
        raise InvalidArgumentError(f"mapping must be a QueueMapping, not {mapping!r}.")
    store = cast("AdoptingStore", scope.store)
    number = as_priority(priority, scope.settings.priorities)
    yield from store.adopt_queue(as_name(domain, "domain"), queue, mapping.check(), number)


def list_domains(scope: Scope, *, after: str | None = None, limit: int | None = None) -> Op[Page[str]]:
    """The domains that were sent to or paused, by name: all that follow `after`, or at most `limit`."""
    cursor = None if after is None else as_name(after, "after")
    if limit is not None:
        as_limit(limit)
    known = yield from scope.store.domains()
    names = sorted(name for name in known if cursor is None or name > cursor)
    more = limit is not None and len(names) > limit
    return Page(names[:limit], names[:limit][-1] if more else None)


def purge(scope: Scope, domain: str | None = None, *, reason: str | None = None) -> Op[PurgeReport]:
    """Forget a domain, or everything, with all trails: for tests. Open batches that have commands in
    other domains, too, count the forgotten ones as canceled; the others are forgotten."""
    chosen, because = None if domain is None else as_name(domain, "domain"), as_reason(reason)
    known = yield from scope.store.domains()
    yield from leave_batches(scope, chosen)
    count = yield from scope.store.purge(chosen)
    if count or (known if chosen is None else chosen in known):
        yield from link_forgotten(scope, [f"{chosen or ALL} {ALL}"])
        yield from record_action(scope, "purge", chosen or "everything", because)
    return PurgeReport(count)
