"""The store: all parts of the port, put together."""

from __future__ import annotations

from commandbus.engines.postgres.arriving import PostgresArriving
from commandbus.engines.postgres.batches import PostgresBatches
from commandbus.engines.postgres.claiming import PostgresClaiming
from commandbus.engines.postgres.documents import PostgresDocuments
from commandbus.engines.postgres.erasing import PostgresErasing
from commandbus.engines.postgres.operators import PostgresOperators
from commandbus.engines.postgres.processes import PostgresProcesses
from commandbus.store.capabilities import Capabilities


class PostgresStore(
    PostgresClaiming,
    PostgresOperators,
    PostgresErasing,
    PostgresArriving,
    PostgresDocuments,
    PostgresBatches,
    PostgresProcesses,
):
    """Commands in PostgreSQL tables; see sql/0001_schema.sql for what they mean."""

    capabilities = Capabilities(
        durable=True,
        many_processes=True,
        caller_transactions=True,
        needs_migration=True,
        handler_transactions=True,
    )
