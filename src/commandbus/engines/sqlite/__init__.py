"""The SQLite engine: one file, many processes, durable. The embedded default."""

from commandbus.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
