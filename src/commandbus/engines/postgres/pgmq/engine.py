"""The PostgreSQL engine with PGMQ as its transport."""

from __future__ import annotations

import msgspec

from commandbus.engines.postgres.engine import PostgresEngine
from commandbus.engines.postgres.pgmq import installation
from commandbus.engines.postgres.pgmq.store import PgmqStore


class PgmqEngine(PostgresEngine):
    """One database with PGMQ, shared with any number of processes, and with other PGMQ clients."""

    store_class = PgmqStore
    store: PgmqStore

    def _start(self) -> None:
        super()._start()
        self.store.listen_also(None if self._listener is None else self._listener.listen_also)

    def _check_schema(self) -> None:
        super()._check_schema()
        if self._migrate:
            installation.prepare(self.url)
        installed = installation.require(self.url)
        self.store.use_version(last_read_at="last_read_at" in installed.columns)


class PgmqClientEngine(PostgresEngine):
    """Sessions on a database with PGMQ, for clients of PGMQ alone: it needs no tables of the bus."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.location = msgspec.structs.replace(self.location, notify=False)

    def _check_schema(self) -> None:
        installation.present(self.url)
