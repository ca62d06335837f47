"""The PostgreSQL engine: many machines, awake in milliseconds, silent when idle."""

from commandbus.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
