"""The scope of operations: the store, the settings, and the source of new ids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from commandbus.domain.command import SendRequest
from commandbus.domain.ids import new_id
from commandbus.domain.moment import Clock, system_clock
from commandbus.domain.process_identity import ProcessIdentity
from commandbus.settings import BusSettings
from commandbus.store.op import Op
from commandbus.store.port import Store
from commandbus.store.process_list import is_seen_alive
from commandbus.store.records import Capacity, Inserted, NewCommand
from commandbus.store.sent import SentFigures

T = TypeVar("T")
PROGRAM = "program"
"""Who acts where no person is named with `acting`."""
logger = logging.getLogger("commandbus")


@dataclass(slots=True)
class Scope:
    store: Store
    settings: BusSettings
    new_id: Callable[[], UUID] = new_id
    carry: Callable[[SendRequest], dict[str, Any]] | None = None
    """What makes the headers of a request, when traces are carried in them."""
    check_payload: Callable[[str, str, str], None] | None = None
    """Raises PayloadError when a payload does not fit the handler of its (domain, command type)."""
    actor: str | None = None
    """Who acts, on a bus that was made by `acting`."""
    in_callers_transaction: bool = False
    """No other session may have to wait for what is locked here."""
    deep: set[str] = field(default_factory=set[str])
    """Domains that were last seen above warn_depth, so that each crossing is logged once."""
    is_seen_alive: Callable[[ProcessIdentity], bool | None] = is_seen_alive
    """Whether a process is in the list of processes; None where this machine cannot know."""
    clock: Clock = system_clock
    """The sender's clock, for expiries that are so many seconds away."""
    sent: SentFigures = field(default_factory=SentFigures)
    """What went through `insert`."""

    @property
    def by(self) -> str:
        """The name under which operator actions are recorded."""
        return self.actor or PROGRAM

    def insert(self, commands: Sequence[NewCommand], capacity: Capacity) -> Op[list[Inserted]]:
        """The store's, and counted."""
        inserted = yield from self.store.insert(commands, capacity)
        self.sent.add(commands, inserted)
        return inserted

    def watch_depth(self, domain: str, pending: int | None) -> None:
        bound = self.settings.warn_depth
        if bound is None or pending is None:
            return
        if pending < bound:
            self.deep.discard(domain)
        elif domain not in self.deep:
            self.deep.add(domain)
            logger.warning("domain %s has %d waiting commands (warn_depth=%d)", domain, pending, bound)


class Await(msgspec.Struct, frozen=True):
    """A flow's request to wait until something was committed, at most so many seconds. Answered by
    the monotonic time, so that flows can keep deadlines."""

    seconds: float


class Send(msgspec.Struct, frozen=True):
    """A flow's op that writes; a bare op is a read."""

    op: Op[Any]


Flow = Generator[Op[Any] | Send | Await, Any, T]
"""Several ops with waiting in between, for use cases that are more than one transaction. Like an op,
a flow never waits itself: the runtime runs its ops and performs its waits."""
