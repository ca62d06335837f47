"""The context that the parts of the PostgreSQL store share."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

from commandbus.engines.postgres.bounds import Bounds
from commandbus.engines.postgres.leases import Leases
from commandbus.engines.postgres.location import Location
from commandbus.engines.postgres.sleepers import Sleepers
from commandbus.engines.postgres.statements import queries
from commandbus.store.deaths import Witness, unknown_death
from commandbus.store.rescuing import StuckLeases
from commandbus.store.wakeup import WakeHub


class Context:
    """The queries of a schema, and what this process knows about its leases, queues and sleepers."""

    def __init__(
        self,
        location: Location,
        hub: WakeHub,
        process: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.schema = location.schema
        self.sql = queries(location.schema)
        self.limited = False
        self.notify = location.notify
        self.hub = hub
        self.process = process
        self.monotonic = monotonic
        self.leases = Leases()
        self.bounds = Bounds()
        self.stuck = StuckLeases()
        self.witness: Witness = unknown_death
        self.gated: frozenset[str] = frozenset()
        """Domains that have gates, as far as this process knows."""
        self.sleepers = Sleepers()

    def consult(self, witness: Witness) -> None:
        self.witness = witness

    def limit(self, limited: bool) -> None:
        """Whether the role of this bus has no rights on tables, and sends by functions that have."""
        self.limited = limited
        self.sql = queries(self.schema, limited=limited)


class Part:
    """A part of the store."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def _sql(self) -> SimpleNamespace:
        return self._context.sql
