"""PGMQ's own functions in both runtimes, and the mapping of a foreign queue's messages."""

from commandbus.domain.adopted_messages import QueueMapping as QueueMapping
from commandbus.operations.pgmq import PgmqMessage as PgmqMessage
from commandbus.operations.pgmq import PgmqMetrics as PgmqMetrics
from commandbus.operations.pgmq import PgmqQueue as PgmqQueue
from commandbus.runtimes.asyncio.pgmq import PgmqClient as PgmqClient
from commandbus.runtimes.threads.pgmq import SyncPgmqClient as SyncPgmqClient
