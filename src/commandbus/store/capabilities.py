"""Capabilities of an engine. Tests and features ask for one, never for an engine's name."""

from __future__ import annotations

import msgspec


class Capabilities(msgspec.Struct, frozen=True):
    durable: bool
    """Acknowledged commands survive the process."""
    many_processes: bool
    """Several processes may share the store."""
    caller_transactions: bool
    """`within(connection)` works: a send can be part of the caller's own transaction."""
    adopted_queues: bool = False
    """Queues of other programs can be bound to a domain with `adopt_queue`."""
    gates: bool = True
    """Commands can be held back: by groups, limits and required tags."""
    ageing: bool = True
    """Waiting can make a command more urgent."""
    one_machine: bool = False
    """All processes of the store are on one machine: its list of processes says which of them live."""
    handler_transactions: bool = False
    """A handler may be transactional: its effects and its outcome commit together."""
    streamed_sends: bool = False
    """Requests of a bulk send may be read while it is under way: other sessions do not wait for it."""
