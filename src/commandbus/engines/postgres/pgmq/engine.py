"""The PostgreSQL engine with PGMQ as its transport."""

from __future__ import annotations

from commandbus.engines.postgres.engine import PostgresEngine
from commandbus.engines.postgres.pgmq import installation
from commandbus.engines.postgres.pgmq.store import PgmqStore


class PgmqEngine(PostgresEngine):
    """One database with PGMQ, shared with any number of processes, and with other PGMQ clients."""

    store_class = PgmqStore
    store: PgmqStore

    def _check_schema(self) -> None:
        super()._check_schema()
        if self._migrate:
            installation.prepare(self.url)
        installed = installation.require(self.url)
        self.store.use_version(last_read_at="last_read_at" in installed.columns)
