"""Names of the tables of queues."""

from __future__ import annotations

from commandbus.domain.names import as_queue


def quoted_table(prefix: str, queue: str) -> str:
    """The table of a queue, as PGMQ names it."""
    return f'pgmq."{prefix}_{as_queue(queue).lower()}"'
