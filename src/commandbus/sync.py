"""The bus for programs without an event loop: the same names with the prefix `Sync`, no `await`."""

from __future__ import annotations

from commandbus.runtimes.threads.bus import SyncCommandBus, SyncTroubleshootingQueue
from commandbus.runtimes.threads.pgmq import SyncPgmqClient
from commandbus.runtimes.threads.processes import SyncProcessManager, SyncProcessReplyRouter
from commandbus.runtimes.threads.worker import SyncWorker
from commandbus.worker.context import SyncHandlerContext

__all__ = [
    "SyncCommandBus",
    "SyncHandlerContext",
    "SyncPgmqClient",
    "SyncProcessManager",
    "SyncProcessReplyRouter",
    "SyncTroubleshootingQueue",
    "SyncWorker",
]
