"""The bus for programs without an event loop: the same names with the prefix `Sync`, no `await`."""

from commandbus.runtimes.threads.bus import SyncCommandBus as SyncCommandBus
from commandbus.runtimes.threads.bus import SyncTroubleshootingQueue as SyncTroubleshootingQueue
from commandbus.runtimes.threads.processes import SyncProcessManager as SyncProcessManager
from commandbus.runtimes.threads.processes import SyncProcessReplyRouter as SyncProcessReplyRouter
from commandbus.runtimes.threads.worker import SyncWorker as SyncWorker
from commandbus.worker.context import SyncHandlerContext as SyncHandlerContext
