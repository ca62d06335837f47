"""What the parts of the PostgreSQL store share."""

from __future__ import annotations

import time
from collections.abc import Callable

from commandbus.engines.postgres.bounds import Bounds
from commandbus.engines.postgres.leases import Leases
from commandbus.engines.postgres.location import Location
from commandbus.engines.postgres.sleepers import Sleepers
from commandbus.engines.postgres.statements import queries
from commandbus.store.rescuing import StuckLeases
from commandbus.store.wakeup import WakeHub


class PostgresBase:
    def __init__(
        self,
        location: Location,
        hub: WakeHub,
        process: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schema = location.schema
        self._sql = queries(location.schema)
        self._limited = False
        self._notify = location.notify
        self._hub = hub
        self._process = process
        self._monotonic = monotonic
        self._leases = Leases()
        self._bounds = Bounds()
        self._stuck = StuckLeases()
        self._gated: frozenset[str] = frozenset()
        """Domains that have gates, as far as this process knows."""
        self.sleepers = Sleepers()

    def limit(self, limited: bool) -> None:
        """Whether the role of this bus has no rights on tables, and sends by functions that have."""
        self._limited = limited
        self._sql = queries(self._schema, limited=limited)
