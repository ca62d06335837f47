"""A durable command bus: send a command, and some worker carries it out, exactly one outcome each.

This module is the asyncio side; `commandbus.sync` is the same for threads.
"""

from __future__ import annotations

from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.breaker import BreakerSnapshot, BreakerState, CircuitBreaker
from commandbus.domain.command import Command, CommandRecord, SendRequest, SendResult
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import CommandStatus, ReplyOutcome
from commandbus.domain.presence import Reason, Why, WorkerInfo
from commandbus.domain.reply import REPLY_TYPE, Reply
from commandbus.domain.retry import RetryPolicy, exponential, fixed, linear, none
from commandbus.domain.schedule import Misfire, Schedule, ScheduleRecord
from commandbus.engines.memory.queue import PriorityDelayQueue
from commandbus.errors import (
    BatchNotFoundError,
    BreakerOpen,
    BusinessRuleException,
    CommandBusError,
    CommandNotFoundError,
    ConfigurationError,
    DuplicateCommandError,
    HandlerAlreadyRegisteredError,
    HandlerNotFoundError,
    InvalidArgumentError,
    InvalidOperationError,
    LeaseLost,
    PayloadError,
    PermanentCommandError,
    PoolExhausted,
    QueueFull,
    RetryAfter,
    SchemaOutdated,
    Snooze,
    StoreUnavailable,
    TransientCommandError,
)
from commandbus.runtimes.asyncio.bus import CommandBus, TroubleshootingQueue
from commandbus.runtimes.asyncio.worker import Worker
from commandbus.runtimes.watchdog import WorkerWatchdog
from commandbus.settings import VERSION, BusSettings, WorkerSettings
from commandbus.store.records import CommandPage, QueueStats
from commandbus.worker.base import ReceivedCommand
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.handlers import HandlerRegistry, handler
from commandbus.worker.health import HealthReport, HealthState, HealthStatus
from commandbus.worker.metrics import WorkerMetrics

__version__ = VERSION

__all__ = [
    "REPLY_TYPE",
    "AuditEvent",
    "AuditEventType",
    "BatchNotFoundError",
    "BreakerOpen",
    "BreakerSnapshot",
    "BreakerState",
    "BusSettings",
    "BusinessRuleException",
    "CircuitBreaker",
    "Command",
    "CommandBus",
    "CommandBusError",
    "CommandNotFoundError",
    "CommandPage",
    "CommandRecord",
    "CommandStatus",
    "ConfigurationError",
    "DuplicateCommandError",
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
    "PayloadError",
    "PermanentCommandError",
    "PoolExhausted",
    "PriorityDelayQueue",
    "QueueFull",
    "QueueStats",
    "ReceivedCommand",
    "Reason",
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
    "StoreUnavailable",
    "SyncHandlerContext",
    "TransientCommandError",
    "TroubleshootingQueue",
    "Why",
    "Worker",
    "WorkerInfo",
    "WorkerMetrics",
    "WorkerSettings",
    "WorkerWatchdog",
    "exponential",
    "fixed",
    "handler",
    "linear",
    "none",
]
