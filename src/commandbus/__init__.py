"""A durable command bus: send a command, and some worker carries it out, exactly one outcome each.

This module is the asyncio side; `commandbus.sync` is the same for threads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from commandbus.errors import (
    BatchNotFoundError,
    BreakerOpen,
    BusinessRuleException,
    CommandBusError,
    CommandCanceled,
    CommandNotFoundError,
    ConfigurationError,
    DuplicateCommandError,
    DuplicateProcessError,
    HandlerAlreadyRegisteredError,
    HandlerNotFoundError,
    InvalidArgumentError,
    InvalidOperationError,
    LeaseLost,
    PayloadError,
    PermanentCommandError,
    PoolExhausted,
    ProcessNotFoundError,
    QueueFull,
    RateLimited,
    RetryAfter,
    SchemaOutdated,
    Snooze,
    StatementTimeout,
    StoreUnavailable,
    TransientCommandError,
    UniqueKeyHeld,
)
from commandbus.settings import VERSION

if TYPE_CHECKING:
    from commandbus.connect import create_pool, plan_connections
    from commandbus.domain.audit import AuditEvent, AuditEventType
    from commandbus.domain.batch import BatchCommand, BatchRecord, BatchStatus
    from commandbus.domain.breaker import BreakerSnapshot, BreakerState, CircuitBreaker
    from commandbus.domain.command import Command, CommandRecord, SendRequest, SendResult
    from commandbus.domain.failure import Failure, FailureKind
    from commandbus.domain.lifecycle import CommandStatus, ReplyOutcome
    from commandbus.domain.limits import Limit
    from commandbus.domain.mapping import QueueMapping
    from commandbus.domain.payload import Unreadable
    from commandbus.domain.presence import Reason, Why, WorkerInfo, WorkerRestart
    from commandbus.domain.process.declaration import END, Process, StartProcess, WaitFor, step
    from commandbus.domain.process.values import (
        ProcessCount,
        ProcessEvent,
        ProcessEventType,
        ProcessRecord,
        ProcessStatus,
        ProcessStep,
        StepStatus,
    )
    from commandbus.domain.reply import REPLY_TYPE, Reply
    from commandbus.domain.retry import RetryPolicy, exponential, fixed, linear, none
    from commandbus.domain.schedule import Misfire, Schedule, ScheduleRecord
    from commandbus.domain.unique import Unique
    from commandbus.engines.memory.queue import PriorityDelayQueue, QueueItem
    from commandbus.engines.memory.queue_worker import QueueWorker
    from commandbus.operations.cases import Case
    from commandbus.operations.checking import CheckReport
    from commandbus.operations.erasure import EraseReport
    from commandbus.operations.ledger import LedgerReport
    from commandbus.operations.pgmq import PgmqMessage, PgmqMetrics, PgmqQueue
    from commandbus.operations.processes import ProcessPage, ProcessStart
    from commandbus.runtimes.asyncio.bus import CommandBus, TroubleshootingQueue
    from commandbus.runtimes.asyncio.loop import new_event_loop
    from commandbus.runtimes.asyncio.pgmq import PgmqClient
    from commandbus.runtimes.asyncio.processes import ProcessManager, ProcessReplyRouter
    from commandbus.runtimes.asyncio.worker import Worker
    from commandbus.runtimes.probes import ProbeServer
    from commandbus.runtimes.watchdog import WorkerWatchdog
    from commandbus.settings import BusSettings, WorkerSettings
    from commandbus.store.records import CommandPage, QueueStats
    from commandbus.store.session import ConnectionUse, NotOpen
    from commandbus.worker.base import ReceivedCommand
    from commandbus.worker.context import HandlerContext, SyncHandlerContext
    from commandbus.worker.handlers import HandlerRegistry, handler
    from commandbus.worker.health import HealthReport, HealthState, HealthStatus
    from commandbus.worker.metrics import WorkerMetrics

__version__ = VERSION

# Names are imported when they are first used, so that a program pays only for what it uses, and the
# command line answers at once.
_HOMES = {
    "commandbus.connect": "create_pool plan_connections",
    "commandbus.domain.audit": "AuditEvent AuditEventType",
    "commandbus.domain.batch": "BatchCommand BatchRecord BatchStatus",
    "commandbus.domain.breaker": "BreakerSnapshot BreakerState CircuitBreaker",
    "commandbus.domain.command": "Command CommandRecord SendRequest SendResult",
    "commandbus.domain.failure": "Failure FailureKind",
    "commandbus.domain.lifecycle": "CommandStatus ReplyOutcome",
    "commandbus.domain.payload": "Unreadable",
    "commandbus.domain.limits": "Limit",
    "commandbus.domain.mapping": "QueueMapping",
    "commandbus.domain.presence": "Reason Why WorkerInfo WorkerRestart",
    "commandbus.domain.process.declaration": "END Process StartProcess WaitFor step",
    "commandbus.domain.process.values": (
        "ProcessCount ProcessEvent ProcessEventType ProcessRecord ProcessStatus ProcessStep StepStatus"
    ),
    "commandbus.domain.reply": "REPLY_TYPE Reply",
    "commandbus.domain.retry": "RetryPolicy exponential fixed linear none",
    "commandbus.domain.schedule": "Misfire Schedule ScheduleRecord",
    "commandbus.domain.unique": "Unique",
    "commandbus.engines.memory.queue": "PriorityDelayQueue QueueItem",
    "commandbus.engines.memory.queue_worker": "QueueWorker",
    "commandbus.operations.cases": "Case",
    "commandbus.operations.checking": "CheckReport",
    "commandbus.operations.erasure": "EraseReport",
    "commandbus.operations.ledger": "LedgerReport",
    "commandbus.operations.pgmq": "PgmqMessage PgmqMetrics PgmqQueue",
    "commandbus.operations.processes": "ProcessPage ProcessStart",
    "commandbus.runtimes.asyncio.bus": "CommandBus TroubleshootingQueue",
    "commandbus.runtimes.asyncio.loop": "new_event_loop",
    "commandbus.runtimes.asyncio.pgmq": "PgmqClient",
    "commandbus.runtimes.asyncio.processes": "ProcessManager ProcessReplyRouter",
    "commandbus.runtimes.asyncio.worker": "Worker",
    "commandbus.runtimes.probes": "ProbeServer",
    "commandbus.runtimes.watchdog": "WorkerWatchdog",
    "commandbus.settings": "BusSettings WorkerSettings",
    "commandbus.store.records": "CommandPage QueueStats",
    "commandbus.store.session": "ConnectionUse NotOpen",
    "commandbus.worker.base": "ReceivedCommand",
    "commandbus.worker.context": "HandlerContext SyncHandlerContext",
    "commandbus.worker.handlers": "HandlerRegistry handler",
    "commandbus.worker.health": "HealthReport HealthState HealthStatus",
    "commandbus.worker.metrics": "WorkerMetrics",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "END",
    "EraseReport",
    "REPLY_TYPE",
    "AuditEvent",
    "AuditEventType",
    "BatchCommand",
    "BatchNotFoundError",
    "BatchRecord",
    "BatchStatus",
    "BreakerOpen",
    "BreakerSnapshot",
    "BreakerState",
    "BusSettings",
    "BusinessRuleException",
    "Case",
    "CheckReport",
    "CircuitBreaker",
    "Command",
    "CommandBus",
    "CommandBusError",
    "CommandCanceled",
    "CommandNotFoundError",
    "CommandPage",
    "CommandRecord",
    "CommandStatus",
    "ConfigurationError",
    "ConnectionUse",
    "DuplicateCommandError",
    "DuplicateProcessError",
    "Failure",
    "FailureKind",
    "HandlerAlreadyRegisteredError",
    "HandlerContext",
    "HandlerNotFoundError",
    "HandlerRegistry",
    "HealthReport",
    "HealthState",
    "HealthStatus",
    "InvalidArgumentError",
    "InvalidOperationError",
    "LeaseLost",
    "Misfire",
    "NotOpen",
    "PayloadError",
    "PermanentCommandError",
    "PgmqClient",
    "PgmqMessage",
    "PgmqMetrics",
    "PgmqQueue",
    "PoolExhausted",
    "PriorityDelayQueue",
    "ProbeServer",
    "Process",
    "ProcessCount",
    "ProcessEvent",
    "ProcessEventType",
    "ProcessManager",
    "ProcessNotFoundError",
    "ProcessPage",
    "ProcessRecord",
    "ProcessReplyRouter",
    "ProcessStart",
    "ProcessStatus",
    "ProcessStep",
    "QueueFull",
    "QueueItem",
    "QueueMapping",
    "QueueStats",
    "QueueWorker",
    "Reason",
    "ReceivedCommand",
    "Reply",
    "ReplyOutcome",
    "RetryAfter",
    "RetryPolicy",
    "Schedule",
    "ScheduleRecord",
    "SchemaOutdated",
    "SendRequest",
    "SendResult",
    "Snooze",
    "StartProcess",
    "StatementTimeout",
    "StepStatus",
    "StoreUnavailable",
    "SyncHandlerContext",
    "TransientCommandError",
    "TroubleshootingQueue",
    "WaitFor",
    "Why",
    "Worker",
    "WorkerInfo",
    "WorkerMetrics",
    "WorkerRestart",
    "WorkerSettings",
    "WorkerWatchdog",
    "create_pool",
    "exponential",
    "fixed",
    "handler",
    "linear",
    "new_event_loop",
    "none",
    "plan_connections",
    "step",
    "LedgerReport",
    "Limit",
    "RateLimited",
    "Unique",
    "Unreadable",
    "UniqueKeyHeld",
]
