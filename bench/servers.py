"""A PostgreSQL for a benchmark that was given none."""

from __future__ import annotations


def own_postgres() -> str:
    """The URL of a new database with the schema, in a server that ends with this process."""
    from commandbus.engines.postgres.schema import upgrade
    from commandbus.testing.postgres import PostgresServer, create_database

    url = create_database(PostgresServer.start())
    upgrade(url)
    return url
